/* transpose.cpp: conversion and transposition on the host device, in tiles that its caches hold. */
#include "device/philox.cuh"
#include "device/quant.cuh"

namespace wp {
namespace {

constexpr u64 SIDE = 64;

u64 least(u64 a, u64 b) { return a < b ? a : b; }

template <class D>
typename D::Bits converted(const wp_transpose &a, u32 y, u64 index) {
    const bool saturate = a.overflow == WP_SATURATE;
    if (a.rounding == WP_NEAREST) return narrow<F32, D>(y, Nearest(), saturate);
    if (a.rounding == WP_STOCHASTIC) return narrow<F32, D>(y, Stochastic(), saturate, philox_half(a.seed, index));
    return narrow<F32, D>(y, Directed(a.rounding), saturate);
}

/* The largest magnitude of the tile that begins at `row` and `col`. */
template <class S, class D>
u32 tile(const wp_transpose &a, float inverse, u64 row, u64 col) {
    u32 most = 0;
    for (u64 r = row; r < least(row + SIDE, a.rows); r++) {
        const typename S::Bits *src = (const typename S::Bits *)(a.src + r * a.src_pitch);
        typename D::Bits *plain = (typename D::Bits *)(a.plain + r * a.plain_pitch);
        for (u64 c = col; c < least(col + SIDE, a.cols); c++) {
            const u32 x = widen<S, F32>(src[c]), size = x & 0x7FFFFFFF;
            most = size > most ? size : most;
            const u32 y = bits_as<u32>(bits_as<float>(x) * inverse);
            const typename D::Bits code = converted<D>(a, y, r * a.cols + c);
            if (a.plain != 0) plain[c] = code;
            ((typename D::Bits *)(a.transposed + c * a.transposed_pitch))[r] = code;
        }
    }
    return most;
}

template <class S, class D>
void transpose(const wp_transpose &a) {
    const float inverse = a.scale != 0 ? scale_given(*(const float *)a.scale).inverse : 1.0f;
    u32 most = 0;
    for (u64 row = 0; row < a.rows; row += SIDE) {
        for (u64 col = 0; col < a.cols; col += SIDE) {
            const u32 here = tile<S, D>(a, inverse, row, col);
            most = here > most ? here : most;
        }
    }
    u32 *place = (u32 *)a.amax;
    most = most > F32::OVERFLOW ? F32::QNAN : most;
    if (place != nullptr && most > *place) *place = most;
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_transpose(const wp_transpose *args) {
    using namespace wp;
    if (args->rounding > WP_STOCHASTIC || args->overflow > WP_SATURATE) return WP_INVALID;
    return with_values(args->src_type, WP_INVALID, [&](auto s) {
        return with_narrow(args->dst_type, WP_INVALID, [&](auto d) {
            transpose<decltype(s), decltype(d)>(*args);
            return WP_OK;
        });
    });
}
