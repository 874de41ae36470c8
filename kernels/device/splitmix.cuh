/*
 * splitmix.cuh: the pattern of stamped memory.
 *
 * Word w of the pattern of `seed` is splitmix64 at state seed + w (Steele, Lea, Flood: "Fast
 * splittable pseudorandom number generators", 2014), so every word can be computed without the ones
 * before it.
 */
#ifndef WARPOOL_SPLITMIX_CUH
#define WARPOOL_SPLITMIX_CUH

#include "host/shim.h"

namespace wp {

WP_HD u64 splitmix64(u64 state) {
    u64 z = state + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* The 8 bytes at block offset 8 * w under `op` and `seed`. */
WP_HD u64 pattern_word(u32 op, u64 seed, u64 w) {
    return op == WP_POISON ? ((0xA5 ^ seed) & 0xFF) * 0x0101010101010101ull : splitmix64(seed + w);
}

/* The high bit of every byte of `x` that is not zero. */
WP_HD u64 nonzero_bytes(u64 x) {
    const u64 low = 0x7F7F7F7F7F7F7F7Full;
    return (((x & low) + low) | x) & ~low;
}

/*
 * The bytes of a block that an operation uses: one range, or two if only the edges are requested.
 * Offsets are from the start of the block.
 */
struct PatternRanges {
    u64 first_end;   /* the first range is [0, first_end) */
    u64 second;      /* the second is [second, bytes); second == bytes if there is only one */
    u64 bytes;
};

WP_HD PatternRanges pattern_ranges(const wp_pattern &args) {
    const bool all = args.edge == 0 || args.edge >= args.bytes - args.bytes / 2;
    if (all) return {args.bytes, args.bytes, args.bytes};
    return {args.edge, args.bytes - args.edge, args.bytes};
}

}  // namespace wp

#endif /* WARPOOL_SPLITMIX_CUH */
