/* pattern.cpp: stamp, verify and poison on the host device. */
#include "device/splitmix.cuh"

namespace wp {
namespace {

struct Found {
    u64 corrupt;
    u64 first; /* offset of the first corrupt byte; meaningful when corrupt != 0 */
};

void note(Found &found, u64 difference, u64 offset) {
    const u64 marks = nonzero_bytes(difference);
    if (marks == 0) return;
    if (found.corrupt == 0) found.first = offset + (u64)__builtin_ctzll(marks) / 8;
    found.corrupt += (u64)__builtin_popcountll(marks);
}

/* Bytes [at, at + n) of one word, n <= 8, none beyond the word's end. */
void part(const wp_pattern &args, u64 at, u64 n, Found &found) {
    u64 word = pattern_word(args.op, args.seed, at / 8) >> (8 * (at % 8));
    u8 *place = (u8 *)args.addr + at;
    if (args.op != WP_VERIFY) {
        memcpy(place, &word, n);
        return;
    }
    u64 held = 0;
    memcpy(&held, place, n);
    if (n < 8) word &= (1ull << (8 * n)) - 1;
    note(found, held ^ word, at);
}

/* `words` whole words from word `w` on; the inner loops are branch-free so that they pipeline. */
void whole(const wp_pattern &args, u64 w, u64 words, Found &found) {
    u8 *place = (u8 *)args.addr + 8 * w;
    if (args.op == WP_POISON) {
        memset(place, (int)((0xA5 ^ args.seed) & 0xFF), 8 * words);
        return;
    }
    if (args.op == WP_STAMP) {
        for (u64 i = 0; i < words; i++) {
            const u64 word = splitmix64(args.seed + w + i);
            memcpy(place + 8 * i, &word, 8);
        }
        return;
    }
    const u64 strip = 512;
    for (u64 start = 0; start < words; start += strip) {
        const u64 end = start + strip < words ? start + strip : words;
        u64 any = 0, held;
        for (u64 i = start; i < end; i++) {
            memcpy(&held, place + 8 * i, 8);
            any |= held ^ splitmix64(args.seed + w + i);
        }
        for (u64 i = start; any != 0 && i < end; i++) {
            memcpy(&held, place + 8 * i, 8);
            note(found, held ^ splitmix64(args.seed + w + i), 8 * (w + i));
        }
    }
}

void range(const wp_pattern &args, u64 begin, u64 end, Found &found) {
    if (begin % 8 != 0) {
        const u64 stop = begin - begin % 8 + 8 < end ? begin - begin % 8 + 8 : end;
        part(args, begin, stop - begin, found);
        begin = stop;
    }
    const u64 words = (end - begin) / 8;
    if (words != 0) whole(args, begin / 8, words, found);
    begin += 8 * words;
    if (begin < end) part(args, begin, end - begin, found);
}

void report(const wp_pattern &args, const PatternRanges &ranges, const Found &found) {
    wp_pattern_report *out = (wp_pattern_report *)args.report;
    __atomic_fetch_add(&out->verified_bytes, ranges.first_end + ranges.bytes - ranges.second, __ATOMIC_RELAXED);
    if (found.corrupt == 0) return;
    __atomic_fetch_add(&out->corrupt_bytes, found.corrupt, __ATOMIC_RELAXED);
    const u64 mine = args.addr + found.first;
    u64 seen = __atomic_load_n(&out->first_corrupt, __ATOMIC_RELAXED);
    while (seen == 0 || mine < seen) {
        if (__atomic_compare_exchange_n(&out->first_corrupt, &seen, mine, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            break;
    }
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_pattern(const wp_pattern *args) {
    using namespace wp;
    if (args->op > WP_POISON || (args->op == WP_VERIFY && args->report == 0)) return WP_INVALID;
    if (args->bytes == 0) return WP_OK;
    const PatternRanges ranges = pattern_ranges(*args);
    Found found = {0, 0};
    range(*args, 0, ranges.first_end, found);
    range(*args, ranges.second, ranges.bytes, found);
    if (args->op == WP_VERIFY) report(*args, ranges, found);
    return WP_OK;
}

extern "C" wp_u32 wp_host_abi(void) { return WP_ABI_VERSION; }
