/*
 * vector.cuh: vectors of elements, loaded and stored by one instruction, also if the source is not
 * aligned.
 *
 * A source that is not aligned to its vector spans two aligned vectors. Each lane of a warp loads one
 * of them, takes the second from the next lane, and shifts both into place. Loading the second too
 * made the multiprocessor the bottleneck (e4m3 to f16: 0.68 of a copy, against 0.94 now).
 */
#ifndef WARPOOL_VECTOR_CUH
#define WARPOOL_VECTOR_CUH

#include "host/shim.h"

namespace wp {

template <int Bytes>
struct Raw;
template <>
struct Raw<2> { using Type = u16; };
template <>
struct Raw<4> { using Type = u32; };
template <>
struct Raw<8> { using Type = uint2; };
template <>
struct Raw<16> { using Type = uint4; };

/* N elements of T, in registers. */
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
    T v[N];
};

/*
 * How long the L2 cache keeps lines that are read once.
 *
 * FIRST_OUT lines leave before all others. That keeps the rest of the cache, but it also fills the cache
 * with stored lines, which then go to memory late and out of order; and a cache full of them stays so
 * from launch to launch. IN_TURN lines leave like others, so stored lines, which are FIRST_OUT, leave
 * at once. Fraction of a copy's speed, 1 GiB, f32 to f16, measured on an H200:
 *   launched after                      FIRST_OUT   IN_TURN   last out
 *   a copy of 1 GiB, or nothing         0.93-0.94    1.017     1.028
 *   many copies of 30 MB                  1.024      1.017     1.028
 * Lines that leave last are better still, but slow down later work: after thirty passes, a kernel that
 * reads the same 40 MB repeatedly took 10.6 us per pass instead of 8.6 us.
 */
enum class Kept { FIRST_OUT, IN_TURN };

/* Loads one vector that is read once. Not in L1: another multiprocessor may write there later. */
template <class R>
__device__ __forceinline__ R load_once(const R *at, Kept kept) {
    return kept == Kept::IN_TURN ? __ldcg(at) : __ldcs(at);
}

/* N elements that are read once. Vectors above 16 bytes go in parts. */
template <class T, int N>
__device__ __forceinline__ Vector<T, N> load_streaming(u64 address, Kept kept = Kept::IN_TURN) {
    if constexpr (sizeof(T) * N > 16) {
        struct Halves {
            Vector<T, N / 2> low, high;
        };
        return bits_as<Vector<T, N>>(
            Halves{load_streaming<T, N / 2>(address, kept), load_streaming<T, N / 2>(address + sizeof(T) * N / 2, kept)});
    } else {
        using R = typename Raw<sizeof(T) * N>::Type;
        return bits_as<Vector<T, N>>(load_once((const R *)address, kept));
    }
}

template <class T, int N>
__device__ __forceinline__ void store_streaming(u64 address, const Vector<T, N> &x) {
    if constexpr (sizeof(T) * N > 16) {
        struct Halves {
            Vector<T, N / 2> low, high;
        };
        const Halves halves = bits_as<Halves>(x);
        store_streaming(address, halves.low);
        store_streaming(address + sizeof(T) * N / 2, halves.high);
    } else {
        using R = typename Raw<sizeof(T) * N>::Type;
        __stcs((R *)address, bits_as<R>(x));
    }
}

/* A vector of N elements of T as words, so that moving it does not split it up. */
template <class T, int N>
struct Words {
    static constexpr int COUNT = sizeof(T) * N / 4;
    u32 w[COUNT];
};

template <class T, int N>
__device__ __forceinline__ Words<T, N> load_words(u64 address, Kept kept) {
    using R = typename Raw<sizeof(T) * N>::Type;
    return bits_as<Words<T, N>>(load_once((const R *)address, kept));
}

/*
 * Calls each(u, x[u]) for all U, in turn. With ROLLED, in a loop over `count` of them, which moves
 * the rest down by one place: the code of a long body exists once, and its compilation takes most of
 * a build, while loads are still in flight together. An index would put the values into local memory.
 */
template <bool ROLLED, class T, int U, class Each>
__device__ __forceinline__ void in_turn(T (&x)[U], const Each &each, int count = U) {
    if constexpr (ROLLED) {
#pragma unroll 1
        for (int u = 0; u < count; u++) {
            each(u, x[0]);
#pragma unroll
            for (int i = 0; i + 1 < U; i++) x[i] = x[i + 1];
        }
    } else {
#pragma unroll
        for (int u = 0; u < U; u++) each(u, x[u]);
    }
}

/* The words of the next lane; in the last lane, those of lane 0 in `beyond`. For whole warps. */
template <class T, int N>
__device__ __forceinline__ Words<T, N> of_next_lane(const Words<T, N> &own, const Words<T, N> &beyond, int lane) {
    Words<T, N> next;
#pragma unroll
    for (int i = 0; i < Words<T, N>::COUNT; i++)
        next.w[i] = __shfl_sync(0xFFFFFFFF, lane == 0 ? beyond.w[i] : own.w[i], (lane + 1) % 32);
    return next;
}

/* The vector that starts `off` bytes into `low` and continues in `high`. */
template <class T, int N>
__device__ __forceinline__ Vector<T, N> shifted(const Words<T, N> &low, const Words<T, N> &high, unsigned off) {
    constexpr int WORDS = Words<T, N>::COUNT;
    u32 x[2 * WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        x[i] = low.w[i];
        x[WORDS + i] = high.w[i];
    }
    /* By selects, because an index would put the words into local memory. */
    if constexpr (WORDS == 4) {
#pragma unroll
        for (int i = 0; i < 6; i++) x[i] = off & 8 ? x[i + 2] : x[i];
    }
    if constexpr (WORDS >= 2) {
#pragma unroll
        for (int i = 0; i <= WORDS; i++) x[i] = off & 4 ? x[i + 1] : x[i];
    }
    Words<T, N> out;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        out.w[i] = sizeof(T) >= 4 ? x[i] : __funnelshift_r(x[i], x[i + 1], 8 * (off & 3));
    return bits_as<Vector<T, N>>(out);
}

/*
 * Prefetches `bytes` from `address` on into L2. The ends may lie anywhere: both are within 16 bytes that
 * are read.
 */
__device__ __forceinline__ void prefetch(u64 address, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    const u64 first = address & ~15ull;
    const u32 whole = (u32)(((address + bytes + 15) & ~15ull) - first);
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(first), "r"(whole));
#endif
}

/* Reads first: many stores to one word queue up, at about 10 ns each (measured). */
__device__ __forceinline__ void set_flag(u32 *flag) {
    volatile u32 *place = flag;
    if (*place == 0) *place = 1;
}

}  // namespace wp

#endif /* WARPOOL_VECTOR_CUH */
