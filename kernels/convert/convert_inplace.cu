/* convert_inplace.cu: conversion inside one buffer. */
#include "device/inplace.cuh"
#include "device/launch.cuh"
#include "device/pairs.cuh"

extern "C" int wp_cuda_inplace(const wp_inplace *args, void *stream) {
    using namespace wp;
    const wp_inplace &a = *args;
    if (a.rounding > WP_STOCHASTIC || a.overflow > WP_SATURATE) return cudaErrorInvalidValue;
    if (a.addr % 16 != 0 || a.scratch % 16 != 0) return cudaErrorInvalidValue;
    if (!are_formats(a.src_type, a.dst_type)) return cudaErrorInvalidValue;
    if (a.count == 0) return 0;
    return with_pair(a.src_type, a.dst_type, cudaErrorInvalidValue, [&](auto s, auto d) -> int {
        using S = decltype(s);
        using D = decltype(d);
        if constexpr (PAIR<S, D>) {
            const u64 bytes = WP_INPLACE_SCRATCH(a.count);
            const cudaError_t cleared = cudaMemsetAsync((void *)a.scratch, 0, bytes, (cudaStream_t)stream);
            if (cleared != cudaSuccess) return cleared;
            const u64 tiles = (a.count + INPLACE_TILE - 1) / INPLACE_TILE;
            const Chosen<S, D, true> op = {a.rounding, a.overflow == WP_SATURATE, a.seed};
            return launch<inplace_kernel<S, D>>(tiles, CONVERT_THREADS, stream, a.addr, a.count, a.scratch, op);
        }
        return cudaErrorInvalidValue;
    });
}
