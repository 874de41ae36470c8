/* convert_fused.cu: conversion fused with a multiply-add, a check for finite values, and maxima. */
#include "device/block_kernel.cuh"
#include "device/convert_kernel.cuh"
#include "device/fused_ops.cuh"
#include "device/pairs.cuh"

namespace wp {
namespace {

template <class S, class D, class Narrower>
int queue_op(const wp_convert &a, const Narrower &narrower, void *stream) {
    const Fused<S, D, Narrower> op(a, narrower);
    return a.block_amax != 0 ? queue_blocks<S, D>(a, op, stream) : queue_convert<S, D>(a, op, stream);
}

}  // namespace

int queue_fused(const wp_convert &a, void *stream) {
    if (a.block_amax != 0 && (a.tiles != 0 || a.rows != 1)) return cudaErrorInvalidValue;
    return with_pair(a.src_type, a.dst_type, cudaErrorInvalidValue, [&](auto s, auto d) -> int {
        using S = decltype(s);
        using D = decltype(d);
        if constexpr (FUSED_PAIR<S, D>) {
            const bool saturate = a.overflow == WP_SATURATE;
            if (SAME<D, F32> || a.rounding == WP_NEAREST)
                return queue_op<S, D>(a, Plain<F32, D, Nearest>{Nearest(), saturate, a.seed}, stream);
            if constexpr (!SAME<D, F32>)
                return queue_op<S, D>(a, Chosen<F32, D, false>{a.rounding, saturate, a.seed}, stream);
        }
        return cudaErrorInvalidValue;
    });
}

}  // namespace wp
