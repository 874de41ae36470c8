/* widen.cuh: exact conversions, to a format that holds every value of the source. */
#ifndef WARPOOL_WIDEN_CUH
#define WARPOOL_WIDEN_CUH

#include "formats.cuh"

namespace wp {

/* `2^power` as an f32, or as an f64, for powers in the normal range. */
WP_HD float power_f32(int power) { return bits_as<float>((u32)(power + 127) << 23); }
WP_HD double power_f64(int power) { return bits_as<double>((u64)(power + 1023) << 52); }

/*
 * A subnormal of S as a normal number of D (F32 or F64): its integer significand, converted
 * exactly, times a power of two. No subnormal enters the arithmetic, so a flush-to-zero mode set by
 * the application changes nothing.
 */
template <class S, class D>
WP_HD typename D::Bits widen_subnormal(u32 significand) {
    constexpr int POWER = 1 - S::BIAS - S::MAN;
    if constexpr (SAME<D, F32>) {
        return bits_as<u32>((float)(int)significand * power_f32(POWER));
    } else {
        return bits_as<u64>((double)(int)significand * power_f64(POWER));
    }
}

/* S to F32 or F64, formats with different biases. */
template <class S, class D>
WP_HD typename D::Bits widen_rebias(typename S::Bits x) {
    using B = typename D::Bits;
    constexpr bool INFINITY_IN_S = S::OVERFLOW != S::QNAN;
    const B magnitude = (B)(x & (typename S::Bits)~S::SIGN);
    const B sign = (B)(x & S::SIGN) << (D::SIZE - S::SIZE);
    B wide = (magnitude << (D::MAN - S::MAN)) + ((B)(D::BIAS - S::BIAS) << D::MAN);
    /* Computed for any significand, so that the arithmetic is outside the selection. */
    const B subnormal = widen_subnormal<S, D>((u32)magnitude & ((1u << S::MAN) - 1));
    wide = magnitude >> S::MAN == 0 ? subnormal : wide;
    if (INFINITY_IN_S) wide = magnitude == S::OVERFLOW ? D::OVERFLOW : wide;
    const bool nan = INFINITY_IN_S ? magnitude > S::OVERFLOW : magnitude == S::QNAN;
    return nan ? D::QNAN : wide | sign;
}

/* Converts `x`, bits of S, to bits of D. */
template <class S, class D>
WP_HD typename D::Bits widen(typename S::Bits x) {
    using B = typename D::Bits;
    static_assert(EXACT<S, D>, "D must hold every value of S");
    if constexpr (SAME<S, D>) {
        return x;
    } else if constexpr (SAME<S, BF16> && SAME<D, F32>) {
        return (B)x << 16;
    } else if constexpr (SAME<S, E5M2> && SAME<D, F16>) {
        return (x & 0x7F) > S::OVERFLOW ? D::QNAN : (B)(x << 8);
    } else if constexpr (SAME<D, BF16>) { /* 8-bit formats: their value in F32 uses only the upper half */
        return (B)(widen_rebias<S, F32>(x) >> 16);
    } else if constexpr (SAME<D, F16>) { /* E4M3: all its values are normal numbers of F16, or 0 */
        const u32 wide = widen_rebias<S, F32>(x);
        const u32 magnitude = wide & 0x7FFFFFFF;
        const u32 rebased = magnitude == 0 ? 0 : (magnitude - (112u << 23)) >> 13;
        return magnitude > F32::OVERFLOW ? D::QNAN : (B)(rebased | (wide >> 16 & 0x8000));
    } else {
        return widen_rebias<S, D>(x);
    }
}

}  // namespace wp

#endif /* WARPOOL_WIDEN_CUH */
