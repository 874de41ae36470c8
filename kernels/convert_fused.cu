/* convert_fused.cu: conversion with multiply and add, finite check and maxima on the way. */
#include "device/convert_kernel.cuh"
#include "device/ops.cuh"
#include "device/pairs.cuh"

namespace wp {

int queue_fused(const wp_convert &a, void *stream) {
    if (a.block_amax != 0 && (a.tiles != 0 || a.rows != 1)) return cudaErrorInvalidValue;
    return with_pair(a.src_type, a.dst_type, cudaErrorInvalidValue, [&](auto s, auto d) -> int {
        using S = decltype(s);
        using D = decltype(d);
        if constexpr (FUSED_PAIR<S, D>) {
            if (a.block_amax != 0) return queue_convert<S, D>(a, Fused<S, D, true>(a), stream);
            return queue_convert<S, D>(a, Fused<S, D, false>(a), stream);
        }
        return cudaErrorInvalidValue;
    });
}

}  // namespace wp
