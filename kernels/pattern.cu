/*
 * pattern.cu: stamp, verify and poison.
 *
 * A thread handles UNROLL vectors of 16 bytes, two words of the pattern each; a block handles one
 * tile, without a grid-stride loop. Verifying makes an atomic only in a block that found something.
 */
#include "device/in_order.cuh"
#include "device/launch.cuh"
#include "device/splitmix.cuh"

namespace wp {
namespace {

constexpr unsigned THREADS = 256;
constexpr unsigned UNROLL = 4;
constexpr u64 TILE_VECTORS = (u64)THREADS * UNROLL;

/* Vector v of the two ranges, joined: its block offset, and the bytes of it to use. */
struct Spot {
    u64 at;
    unsigned from, to; /* [from, to) within the 16 bytes */
};

__device__ __forceinline__ Spot spot(const PatternRanges &ranges, u64 v) {
    const u64 first_vectors = (ranges.first_end + 15) / 16;
    const bool second = v >= first_vectors;
    const u64 begin = second ? ranges.second : 0;
    const u64 end = second ? ranges.bytes : ranges.first_end;
    const u64 at = (second ? begin / 16 + (v - first_vectors) : v) * 16;
    Spot s = {at, 0, 16};
    if (at < begin) s.from = (unsigned)(begin - at);
    if (at + 16 > end) s.to = at < end ? (unsigned)(end - at) : 0;
    return s;
}

__device__ __forceinline__ ulonglong2 words_at(const wp_pattern &args, u64 at) {
    ulonglong2 words;
    words.x = pattern_word(args.op, args.seed, at / 8);
    words.y = pattern_word(args.op, args.seed, at / 8 + 1);
    return words;
}

__device__ __forceinline__ u8 byte_of(const ulonglong2 &words, unsigned i) {
    return (u8)((i < 8 ? words.x : words.y) >> (8 * (i % 8)));
}

__global__ void __launch_bounds__(THREADS) write_kernel(const wp_pattern args, const PatternRanges ranges, u64 vectors) {
    begin_in_order();
    const bool aligned = args.addr % 16 == 0;
#pragma unroll
    for (unsigned u = 0; u < UNROLL; u++) {
        const u64 v = (u64)blockIdx.x * TILE_VECTORS + u * THREADS + threadIdx.x;
        if (v >= vectors) return;
        const Spot s = spot(ranges, v);
        const ulonglong2 words = words_at(args, s.at);
        if (aligned && s.from == 0 && s.to == 16) {
            __stcs((ulonglong2 *)(args.addr + s.at), words);
        } else {
            for (unsigned i = s.from; i < s.to; i++) ((u8 *)(args.addr + s.at))[i] = byte_of(words, i);
        }
    }
}

/* Adds one thread's findings to the block's sums; called only by threads that found something. */
__device__ __noinline__ void note(ulonglong2 difference, u64 address, unsigned *corrupt, u64 *first) {
    const u64 low = nonzero_bytes(difference.x), high = nonzero_bytes(difference.y);
    if ((low | high) == 0) return;
    atomicAdd(corrupt, (unsigned)(__popcll(low) + __popcll(high)));
    const unsigned at = low != 0 ? (__ffsll((i64)low) - 1) / 8 : 8 + (__ffsll((i64)high) - 1) / 8;
    atomicMin(first, address + at);
}

__device__ void report(const wp_pattern &args, unsigned corrupt, u64 first) {
    wp_pattern_report *out = (wp_pattern_report *)args.report;
    atomicAdd(&out->corrupt_bytes, (u64)corrupt);
    u64 seen = atomicCAS(&out->first_corrupt, 0ull, first);
    while (seen != 0 && first < seen) {
        const u64 before = atomicCAS(&out->first_corrupt, seen, first);
        if (before == seen) break;
        seen = before;
    }
}

__global__ void __launch_bounds__(THREADS) verify_kernel(const wp_pattern args, const PatternRanges ranges, u64 vectors) {
    begin_in_order();
    __shared__ unsigned corrupt;
    __shared__ u64 first;
    const bool aligned = args.addr % 16 == 0;
    ulonglong2 held[UNROLL];
    Spot spots[UNROLL];
#pragma unroll
    for (unsigned u = 0; u < UNROLL; u++) {
        const u64 v = (u64)blockIdx.x * TILE_VECTORS + u * THREADS + threadIdx.x;
        spots[u] = v < vectors ? spot(ranges, v) : Spot{0, 0, 0};
        if (aligned && spots[u].from == 0 && spots[u].to == 16)
            held[u] = __ldcs((const ulonglong2 *)(args.addr + spots[u].at));
    }
    ulonglong2 difference[UNROLL];
    u64 any = 0;
#pragma unroll
    for (unsigned u = 0; u < UNROLL; u++) {
        const Spot s = spots[u];
        const ulonglong2 words = words_at(args, s.at);
        difference[u] = make_ulonglong2(0, 0);
        if (aligned && s.from == 0 && s.to == 16) {
            difference[u] = make_ulonglong2(held[u].x ^ words.x, held[u].y ^ words.y);
        } else {
            for (unsigned i = s.from; i < s.to; i++) {
                const u64 wrong = (u64)(((const u8 *)(args.addr + s.at))[i] ^ byte_of(words, i)) << (8 * (i % 8));
                (i < 8 ? difference[u].x : difference[u].y) |= wrong;
            }
        }
        any |= difference[u].x | difference[u].y;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        atomicAdd(&((wp_pattern_report *)args.report)->verified_bytes,
                  ranges.first_end + ranges.bytes - ranges.second);
    if (!__syncthreads_or(any != 0)) return;
    if (threadIdx.x == 0) corrupt = 0, first = ~0ull;
    __syncthreads();
    if (any != 0)
        for (unsigned u = 0; u < UNROLL; u++) note(difference[u], args.addr + spots[u].at, &corrupt, &first);
    __syncthreads();
    if (threadIdx.x == 0) report(args, corrupt, first);
}

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_pattern(const wp_pattern *args, void *stream) {
    using namespace wp;
    if (args->op > WP_POISON || (args->op == WP_VERIFY && args->report == 0)) return cudaErrorInvalidValue;
    if (args->bytes == 0) return 0;
    const PatternRanges ranges = pattern_ranges(*args);
    u64 vectors = (ranges.first_end + 15) / 16;
    if (ranges.second < ranges.bytes) vectors += (ranges.bytes + 15) / 16 - ranges.second / 16;
    const u64 blocks = (vectors + TILE_VECTORS - 1) / TILE_VECTORS;
    if (args->op == WP_VERIFY) return launch<verify_kernel>(blocks, THREADS, stream, *args, ranges, vectors);
    return launch<write_kernel>(blocks, THREADS, stream, *args, ranges, vectors);
}
