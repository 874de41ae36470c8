/*
 * hardware_modes.cuh: directed and stochastic narrowing from F32 in floating-point arithmetic.
 *
 * Returns the same bits as narrow() with a third of its instructions. Let U, a power of two, be the
 * distance between the results on either side of |x|. The last bit of a sum with M = 2^23 U has the
 * weight U. So adding M in the required rounding and subtracting it again, which is exact, rounds |x|
 * to a multiple of U. That is a value of D or beyond the largest one. The hardware's conversion to
 * nearest does the rest: it is exact, or overflows.
 *
 * Stochastic rounding adds r U / 2^16 to |x| and rounds down. The sum itself is rounded down to a
 * grid that contains the multiples of U, which changes nothing.
 */
#ifndef WARPOOL_HARDWARE_MODES_CUH
#define WARPOOL_HARDWARE_MODES_CUH

#include "hardware.cuh"

namespace wp {

/*
 * The bits of the power of two at or below |x|; at least the smallest normal number of D, and small
 * enough that M does not overflow. Larger values are beyond D and stay so.
 */
template <class D>
__device__ __forceinline__ u32 power_below(u32 x) {
    constexpr u32 SMALLEST = (u32)(F32::BIAS - D::BIAS + 1) << F32::MAN;
    constexpr u32 LARGEST_POWER = (u32)(F32::BIAS + D::BIAS + 2) << F32::MAN;
    const u32 power = x & F32::OVERFLOW;
    return min(max(power, SMALLEST), LARGEST_POWER);
}

template <class D>
__device__ __forceinline__ float magic(u32 power) {
    return __uint_as_float(power + ((u32)(F32::MAN - D::MAN) << F32::MAN));
}

/* The largest finite value of D. */
template <class D>
constexpr float LARGEST = SAME<D, F16> ? 65504.0f : SAME<D, E4M3> ? 448.0f : 57344.0f;

/*
 * F32 to F16, E4M3 or E5M2: the bits of an F32 that D holds, or that overflows to nearest if the mode
 * overflows.
 */
template <class D>
__device__ __forceinline__ u32 on_grid(u32 x, const Directed &mode, bool, u32) {
    const float size = fabsf(__uint_as_float(x)), m = magic<D>(power_below<D>(x));
    const bool away = mode.away((x & F32::SIGN) != 0) != 0;
    const float sum = away ? __fadd_ru(size, m) : __fadd_rd(size, m);
    float y = __fsub_rn(sum, m);
    /* Toward zero no finite value overflows; infinity and NaN are unchanged. */
    y = !away && y > LARGEST<D> && size <= 3.402823466e38f ? LARGEST<D> : y;
    return __float_as_uint(y) | (x & F32::SIGN);
}

/* `high` says which half of `random` belongs to the element. */
template <class D>
__device__ __forceinline__ u32 on_grid(u32 x, const Stochastic &, bool high, u32 random) {
    const u32 power = power_below<D>(x);
    const float m = magic<D>(power);
    /* 1 + r / 2^23, times 2^7 U, is r U / 2^16 plus 128 U, which are subtracted again. */
    const float draw = __uint_as_float(__byte_perm(random, 0x3F800000, high ? 0x7632 : 0x7610));
    const float units = __uint_as_float(power + ((u32)(7 - D::MAN) << F32::MAN));
    const float sum = __fadd_rd(__fmaf_rd(draw, units, fabsf(__uint_as_float(x))), m);
    const float y = __fsub_rn(__fsub_rn(sum, m), units);
    return __float_as_uint(y) | (x & F32::SIGN);
}

/* The number to add to the bits of an F32 before its lower half is cut off. */
__device__ __forceinline__ u32 bfloat_addend(u32 x, const Directed &mode, bool, u32) {
    return mode.away((x & F32::SIGN) != 0) != 0 ? 0xFFFF : 0;
}
__device__ __forceinline__ u32 bfloat_addend(u32, const Stochastic &, bool high, u32 random) {
    return high ? random >> 16 : random & 0xFFFF;
}

template <class Mode>
__device__ __forceinline__ u16 to_bfloat(u32 x, const Mode &mode, bool saturate, bool high, u32 random) {
    const u32 cut = (x + bfloat_addend(x, mode, high, random)) >> 16;
    const float value = __uint_as_float(x);
    const u32 y = saturate && (cut & 0x7FFF) == BF16::OVERFLOW ? cut - 1 : cut;
    return (u16)(value == value ? y : BF16::QNAN);
}

/* Two adjacent elements from F32; `random` has 16 bits for each. */
template <class D, class Mode>
__device__ __forceinline__ void two_by_mode(const u32 *x, typename D::Bits *y, const Mode &mode, bool saturate,
                                            u32 random) {
    if constexpr (SAME<D, BF16>) {
        y[0] = to_bfloat(x[0], mode, saturate, false, random);
        y[1] = to_bfloat(x[1], mode, saturate, true, random);
    } else {
        const u32 grid[2] = {on_grid<D>(x[0], mode, false, random), on_grid<D>(x[1], mode, true, random)};
        Hardware<F32, D>::two(grid, y, saturate);
    }
}

/* F64 to F32, directed: several directed roundings in a row round once. */
__device__ __forceinline__ u32 cut_f64(u64 x, const Directed &mode) {
    const double size = fabs(__longlong_as_double((i64)x));
    const bool negative = (i64)x < 0;
    const float below = __double2float_rd(size);
    const u32 up = mode.away(negative) != 0 && (double)below < size;
    return (__float_as_uint(below) + up) | (negative ? F32::SIGN : 0);
}

}  // namespace wp

#endif /* WARPOOL_HARDWARE_MODES_CUH */
