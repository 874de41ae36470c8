/*
 * ops.cuh: what a conversion kernel does with the elements it is handed.
 *
 * An operation has
 *   UNROLL              groups a thread has under way at once;
 *   begin()             called once by every thread before the first element;
 *   group(x, y, index)  a group of neighbours, the first numbered `index`;
 *   one(x, index)       one element, where a group is not whole;
 *   done<V>(e, count)   after each group, by whole warps: the thread's group began at element e;
 *   finish(tensor)      once by whole warps, after the last element.
 */
#ifndef WARPOOL_OPS_CUH
#define WARPOOL_OPS_CUH

#include "fuse.cuh"
#include "hardware.cuh"
#include "philox.cuh"
#include "shape.cuh"

namespace wp {

/* The generator's words of V neighbours; `index` need not be a multiple of 4. */
template <int V>
__device__ __forceinline__ void philox_words(u32 (&random)[V], u64 seed, u64 index) {
    constexpr int BLOCKS = (V + 3) / 4;
    const unsigned off = (unsigned)index & 3;
    u32 all[4 * BLOCKS + 4];
#pragma unroll
    for (int b = 0; b <= BLOCKS; b++) {
        const bool needed = b < BLOCKS || off + V > 4 * BLOCKS;
        const Words4 w = needed ? philox(seed, index / 4 + b) : Words4{};
#pragma unroll
        for (int i = 0; i < 4; i++) all[4 * b + i] = w.v[i];
    }
    /* Shifted by selects: an index would put the words into memory. */
#pragma unroll
    for (int i = 0; i < V + 2; i++) all[i] = off & 2 ? all[i + 2] : all[i];
#pragma unroll
    for (int i = 0; i < V; i++) random[i] = off & 1 ? all[i + 1] : all[i];
}

/* V elements under one mode, nearest by the hardware. */
template <class S, class D, int V, class Mode>
__device__ __forceinline__ void convert_all(const typename S::Bits (&x)[V], typename D::Bits (&y)[V],
                                            const Mode &mode, bool saturate, u64 seed, u64 index) {
    if constexpr (SAME<S, D>) {
#pragma unroll
        for (int i = 0; i < V; i++) y[i] = x[i];
    } else if constexpr (EXACT<S, D> || SAME_MODE<Mode, Nearest>) {
#pragma unroll
        for (int i = 0; i < V; i += 2) Hardware<S, D>::two(x + i, y + i, saturate);
    } else {
        u32 random[V] = {};
        if constexpr (Mode::RANDOM) philox_words<V>(random, seed, index);
#pragma unroll
        for (int i = 0; i < V; i++) y[i] = element<S, D>(x[i], mode, saturate, random[i]);
    }
}

/* Nothing but the conversion, the mode known at compile time. */
template <class S, class D, class Mode>
struct Plain {
    static constexpr bool BLOCKS = false;
    /* The integer code wants the registers of a second group for itself. */
    static constexpr int UNROLL = EXACT<S, D> || SAME_MODE<Mode, Nearest> ? Shape<S, D>::U : 1;
    Mode mode;
    bool saturate;
    u64 seed;

    __device__ __forceinline__ void begin() {}

    template <int V>
    __device__ __forceinline__ void group(const typename S::Bits (&x)[V], typename D::Bits (&y)[V], u64 index) {
        convert_all<S, D>(x, y, mode, saturate, seed, index);
    }

    __device__ __forceinline__ typename D::Bits one(typename S::Bits x, u64 index) {
        return element<S, D>(x, mode, saturate, Mode::RANDOM ? philox_word(seed, index) : 0);
    }

    template <int V>
    __device__ __forceinline__ void done(i64, u64) {}
    __device__ __forceinline__ void finish(u32) {}
};

/* The mode chosen when the kernel runs; the branch is the same for the whole grid. */
template <class S, class D>
struct Chosen {
    u32 rounding;
    bool saturate;
    u64 seed;

    template <int V>
    __device__ __forceinline__ void group(const typename S::Bits (&x)[V], typename D::Bits (&y)[V], u64 index) const {
        if (EXACT<S, D> || rounding == WP_NEAREST) {
            convert_all<S, D>(x, y, Nearest(), saturate, seed, index);
        } else if (rounding == WP_STOCHASTIC) {
            convert_all<S, D>(x, y, Stochastic(), saturate, seed, index);
        } else {
            convert_all<S, D>(x, y, Directed(rounding), saturate, seed, index);
        }
    }

    __device__ __forceinline__ typename D::Bits one(typename S::Bits x, u64 index) const {
        if (EXACT<S, D> || rounding == WP_NEAREST) return element<S, D>(x, Nearest(), saturate);
        if (rounding == WP_STOCHASTIC) return element<S, D>(x, Stochastic(), saturate, philox_word(seed, index));
        return element<S, D>(x, Directed(rounding), saturate);
    }
};

/* S to F32, multiply and add, F32 to D, and what is wanted to be known of it. */
template <class S, class D, bool BlockMaxima>
struct Fused {
    static constexpr bool BLOCKS = BlockMaxima;
    static constexpr int UNROLL = 1;
    Chosen<F32, D> narrower;
    float scale, bias;
    wp_addr scale_at, flag, amax, block_amax;
    u32 most = 0;       /* largest magnitude of the thread */
    u32 group_most = 0; /* and of its last group */
    bool bad = false;

    Fused(const wp_convert &a)
        : narrower{a.rounding, a.overflow == WP_SATURATE, a.seed}, scale(a.scale), bias(a.bias),
          scale_at(a.scale_at), flag(a.flag), amax(a.amax), block_amax(a.block_amax) {}

    __device__ __forceinline__ void begin() {
        if (scale_at != 0) scale *= *(const volatile float *)scale_at;
    }

    __device__ __forceinline__ void note(u32 y, typename D::Bits result) {
        const u32 magnitude = y & 0x7FFFFFFF;
        group_most = magnitude > group_most ? magnitude : group_most;
        bad = bad || not_finite<D>(y, result);
    }

    template <int V>
    __device__ __forceinline__ void group(const typename S::Bits (&x)[V], typename D::Bits (&y)[V], u64 index) {
        u32 wide[V];
        convert_all<S, F32>(x, wide, Nearest(), false, 0, 0);
#pragma unroll
        for (int i = 0; i < V; i++) wide[i] = multiply_add(wide[i], scale, bias);
        narrower.group(wide, y, index);
#pragma unroll
        for (int i = 0; i < V; i++) note(wide[i], y[i]);
    }

    __device__ __forceinline__ typename D::Bits one(typename S::Bits x, u64 index) {
        const u32 wide = multiply_add(widen<S, F32>(x), scale, bias);
        const typename D::Bits y = narrower.one(wide, index);
        note(wide, y);
        return y;
    }

    template <int V>
    __device__ __forceinline__ void done(i64 e, u64 count) {
        most = group_most > most ? group_most : most;
        if (BlockMaxima) {
#pragma unroll
            for (int d = 1; d < 32 / V; d *= 2) {
                const u32 other = __shfl_xor_sync(0xFFFFFFFF, group_most, d);
                group_most = other > group_most ? other : group_most;
            }
            if (e % 32 == 0 && (u64)e < count) ((u32 *)block_amax)[e / 32] = group_most;
        }
        group_most = 0;
    }

    /* An atomic only from a warp that has something new to say. */
    __device__ __forceinline__ void finish(u32 tensor) {
        const u32 any_bad = __any_sync(0xFFFFFFFF, bad);
        for (int d = 16; d > 0; d /= 2) {
            const u32 other = __shfl_xor_sync(0xFFFFFFFF, most, d);
            most = other > most ? other : most;
        }
        if (threadIdx.x % 32 != 0) return;
        if (any_bad && flag != 0) *(volatile u32 *)flag = 1;
        u32 *place = (u32 *)amax + tensor;
        if (amax != 0 && most > *(volatile u32 *)place) atomicMax(place, most);
    }
};

}  // namespace wp

#endif /* WARPOOL_OPS_CUH */
