/*
 * fused_ops.cuh: conversion with a multiply-add, a check for finite values and maxima, as an operation of
 * ops.cuh.
 */
#ifndef WARPOOL_FUSED_OPS_CUH
#define WARPOOL_FUSED_OPS_CUH

#include "ops.cuh"
#include "vector.cuh"

namespace wp {

/* The largest value in a warp, in every lane. */
__device__ __forceinline__ u32 warp_max(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xFFFFFFFF, x);
#else
    for (int d = 16; d > 0; d /= 2) x = max(x, __shfl_xor_sync(0xFFFFFFFF, x, d));
    return x;
#endif
}

/* S to F32, multiply-add, F32 to D, and the findings that were requested. */
template <class S, class D, class Narrower>
struct Fused {
    static constexpr bool NEAREST = SAME_MODE<Narrower, Plain<F32, D, Nearest>>;
    /* Long, so that few blocks write the flag and the maximum. */
    static constexpr int CHUNKS = 4;
    static constexpr int RESIDENT = NEAREST ? 3 : 2;
    static constexpr bool LONG = !NEAREST;
    Narrower narrower;
    float scale, bias;
    wp_addr scale_at, flag, amax;
    u32 most = 0; /* largest magnitude of the thread */
    bool bad = false;

    Fused(const wp_convert &a, const Narrower &narrower)
        : narrower(narrower), scale(a.scale), bias(a.bias), scale_at(a.scale_at), flag(a.flag), amax(a.amax) {}

    __device__ __forceinline__ void begin() {
        if (scale_at != 0) scale *= *(const volatile float *)scale_at;
    }

    __device__ __forceinline__ void note(u32 y, typename D::Bits result) {
        most = max(most, y & 0x7FFFFFFF);
        if constexpr (!NEAREST) bad = bad || not_finite<D>(y, result);
    }

    template <int V>
    __device__ __forceinline__ void group(const typename S::Bits (&x)[V], typename D::Bits (&y)[V], u64 index, bool whole = true) {
        u32 wide[V];
        convert_all<S, F32>(x, wide, Nearest(), false, 0, 0);
#pragma unroll
        for (int i = 0; i < V; i++) wide[i] = multiply_add(wide[i], scale, bias);
        if constexpr (SAME<D, F32>) {
#pragma unroll
            for (int i = 0; i < V; i++) y[i] = wide[i];
        } else {
            narrower.group(wide, y, index);
        }
#pragma unroll
        for (int i = 0; i < V; i++)
            if (whole || i == 0) note(wide[i], y[i]);
    }

    __device__ __forceinline__ typename D::Bits one(typename S::Bits x, u64 index) {
        u32 wide = x;
        if constexpr (!SAME<S, F32>) wide = convert_one<S, F32>(x, false);
        wide = multiply_add(wide, scale, bias);
        typename D::Bits y;
        if constexpr (SAME<D, F32>) {
            y = wide;
        } else {
            y = narrower.one(wide, index);
        }
        note(wide, y);
        return y;
    }

    /* Rounding to nearest keeps order: if any result is not finite, the largest is not. */
    __device__ __forceinline__ bool any_bad() const {
        if constexpr (NEAREST) return not_finite<D>(most, rounded<D>(most, Nearest(), narrower.saturate, 0));
        return bad;
    }

    /* Atomics only from a block, or warp, that changes the result. */
    __device__ __forceinline__ void finish(u32 tensor, bool own) {
        if (__syncthreads_or(any_bad()) && threadIdx.x == 0 && flag != 0) set_flag((u32 *)flag);
        if (amax == 0) return;
        __shared__ u32 block_most;
        if (threadIdx.x == 0) block_most = 0;
        __syncthreads();
        const u32 of_warp = warp_max(most);
        u32 *place = (u32 *)amax + tensor;
        if (own) {
            if (threadIdx.x % 32 == 0 && of_warp > *(volatile u32 *)place) atomicMax(place, of_warp);
            return;
        }
        if (threadIdx.x % 32 == 0) atomicMax(&block_most, of_warp);
        __syncthreads();
        if (threadIdx.x == 0 && block_most > *(volatile u32 *)place) atomicMax(place, block_most);
    }
};

}  // namespace wp

#endif /* WARPOOL_FUSED_OPS_CUH */
