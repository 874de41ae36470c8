/*
 * formats.cuh: the floating-point formats, as constants.
 *
 * Binary16, binary32 and binary64 are IEEE 754-2019. bfloat16 is binary32's upper half. E4M3 and
 * E5M2 are from the OCP 8-bit Floating Point Specification (OFP8), revision 1.0: E5M2 has
 * infinities like IEEE; E4M3 has none, and one NaN per sign (all ones).
 *
 * QNAN is the result of NVIDIA's conversion instructions for any NaN: positive, all ones. Every
 * conversion of this crate returns it too, except two that copy bits: bf16 to f32, and a format to
 * itself.
 */
#ifndef WARPOOL_FORMATS_CUH
#define WARPOOL_FORMATS_CUH

#include "host/shim.h"

namespace wp {

/*
 * OVERFLOW is the result for a magnitude beyond the largest finite one, without saturation:
 * infinity, or NaN (with the sign kept) in a format without infinity.
 */
template <class B, wp_type Id, int Size, int Man, int Bias, u64 Max, u64 Over, u64 QNan>
struct Format {
    using Bits = B;
    static constexpr wp_type ID = Id;
    static constexpr int SIZE = Size; /* bits in total */
    static constexpr int MAN = Man;   /* stored bits of the significand */
    static constexpr int BIAS = Bias;
    static constexpr Bits MAX = (Bits)Max;
    static constexpr Bits OVERFLOW = (Bits)Over;
    static constexpr Bits QNAN = (Bits)QNan;
    static constexpr Bits SIGN = (Bits)(1ull << (Size - 1));
};

using F64 = Format<u64, WP_F64, 64, 52, 1023, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF>;
using F32 = Format<u32, WP_F32, 32, 23, 127, 0x7F7FFFFF, 0x7F800000, 0x7FFFFFFF>;
using F16 = Format<u16, WP_F16, 16, 10, 15, 0x7BFF, 0x7C00, 0x7FFF>;
using BF16 = Format<u16, WP_BF16, 16, 7, 127, 0x7F7F, 0x7F80, 0x7FFF>;
using E4M3 = Format<u8, WP_E4M3, 8, 3, 7, 0x7E, 0x7F, 0x7F>;
using E5M2 = Format<u8, WP_E5M2, 8, 2, 15, 0x7B, 0x7C, 0x7F>;

template <class A, class B>
constexpr bool SAME = A::ID == B::ID;

/* Whether every value of S is a value of D. */
template <class S, class D>
constexpr bool EXACT = S::MAN <= D::MAN && (D::SIZE > S::SIZE || SAME<S, D>) &&
                       (D::MAN + D::BIAS >= S::MAN + S::BIAS);

}  // namespace wp

#endif /* WARPOOL_FORMATS_CUH */
