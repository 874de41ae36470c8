/* fuse.cuh: work on a value during its conversion. */
#ifndef WARPOOL_FUSE_CUH
#define WARPOOL_FUSE_CUH

#include "element.cuh"

namespace wp {

/* The pairs that can be fused: those of element(), and a format with itself, without F64. */
template <class S, class D>
constexpr bool FUSED_PAIR = (PAIR<S, D> || SAME<S, D>) && !SAME<S, F64> && !SAME<D, F64>;

/* x * scale + bias, rounded once; any NaN as F32::QNAN. */
WP_HD u32 multiply_add(u32 x, float scale, float bias) {
#ifdef __CUDA_ARCH__
    const float y = __fmaf_rn(bits_as<float>(x), scale, bias);
#else
    const float y = __builtin_fmaf(bits_as<float>(x), scale, bias);
#endif
    return y == y ? bits_as<u32>(y) : F32::QNAN;
}

/* Converts the F32 bits `y` to bits of D. */
template <class D, class Mode>
WP_HD typename D::Bits rounded(u32 y, const Mode &mode, bool saturate, u32 random) {
    if constexpr (SAME<D, F32>) {
        return y;
    } else {
        return narrow<F32, D>(y, mode, saturate, random);
    }
}

/* Whether the value or its result is infinite or NaN. */
template <class D>
WP_HD bool not_finite(u32 y, typename D::Bits result) {
    return (y & 0x7FFFFFFF) > F32::MAX || (result & (typename D::Bits)~D::SIGN) > D::MAX;
}

}  // namespace wp

#endif /* WARPOOL_FUSE_CUH */
