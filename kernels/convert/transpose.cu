/* transpose.cu: conversion and transposition: the entry point. */
#include "device/transpose_kernel.cuh"

namespace wp {
namespace {

bool is_aligned(u64 addr, u64 pitch, u64 rows, u64 to) { return addr % to == 0 && (rows <= 1 || pitch % to == 0); }

template <class S, class D>
int queue_transpose(const wp_transpose &a, void *stream) {
    constexpr u64 SIDE = Turned<D>::SIDE;
    const u64 across = (a.cols + SIDE - 1) / SIDE, down = (a.rows + SIDE - 1) / SIDE;
    if (across > 0x7FFFFFFF || down > 0x7FFFFFFF / across) return cudaErrorInvalidValue;
    const Sides sides = {is_aligned(a.src, a.src_pitch, a.rows, 16),
                         is_aligned(a.plain, a.plain_pitch, a.rows, SLOT<S> * D::SIZE / 8),
                         is_aligned(a.transposed, a.transposed_pitch, a.cols, 16)};
    const Chosen<F32, D, false> how = {a.rounding, a.overflow == WP_SATURATE, a.seed};
    return launch<transpose_kernel<S, D>>(across * down, QUANT_THREADS, stream, a, (u32)across, sides, how);
}

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_transpose(const wp_transpose *args, void *stream) {
    using namespace wp;
    const wp_transpose &a = *args;
    if (a.rounding > WP_STOCHASTIC || a.overflow > WP_SATURATE) return cudaErrorInvalidValue;
    return with_values(a.src_type, cudaErrorInvalidValue, [&](auto s) {
        return with_narrow(a.dst_type, cudaErrorInvalidValue, [&](auto d) -> int {
            if (a.rows == 0 || a.cols == 0) return 0;
            return queue_transpose<decltype(s), decltype(d)>(a, stream);
        });
    });
}
