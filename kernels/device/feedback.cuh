/* feedback.cuh: narrowing that keeps its rounding error for the next step. */
#ifndef WARPOOL_FEEDBACK_CUH
#define WARPOOL_FEEDBACK_CUH

#include "fuse.cuh"

namespace wp {

/* The formats that gradients are narrowed to. */
template <class D>
constexpr bool NARROW = SAME<D, F16> || SAME<D, BF16> || SAME<D, E4M3> || SAME<D, E5M2>;

/*
 * The code of (x + residual) * scale; the residual becomes the sum minus the value of the code. If the sum or the code
 * is not finite, the residual is unchanged, because nothing of this step will be used.
 */
template <class D, class Mode>
WP_HD typename D::Bits fed_back(u32 x, u32 &residual, float scale, float inverse, const Mode &mode, u32 random) {
    const u32 sum = bits_as<u32>(bits_as<float>(x) + bits_as<float>(residual));
    const u32 y = multiply_add(sum, scale, -0.0f);
    const typename D::Bits code = rounded<D>(y, mode, false, random);
    /*
     * The product of a code and a power of two is exact, so only one rounding loses anything here.
     */
    const float lost = bits_as<float>(sum) - bits_as<float>(widen<D, F32>(code)) * inverse;
    residual = not_finite<D>(y, code) ? residual : bits_as<u32>(lost);
    return code;
}

}  // namespace wp

#endif /* WARPOOL_FEEDBACK_CUH */
