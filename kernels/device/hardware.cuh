/*
 * hardware.cuh: nearest-even conversion of two adjacent elements by the GPU's own instructions.
 *
 * Returns the same bits as element(), which is used if an architecture lacks the instruction. F64 goes through F32 rounded to odd (toward zero, then the last bit set if
 * anything was lost): rounding that to 11 bits or fewer rounds once (Boldo, Melquiond: "When double
 * rounding is odd", 2005).
 */
#ifndef WARPOOL_HARDWARE_CUH
#define WARPOOL_HARDWARE_CUH

#include "element.cuh"

namespace wp {

/* The default: the integer code. */
template <class S, class D>
struct Hardware {
    static __device__ __forceinline__ void two(const typename S::Bits *x, typename D::Bits *y, bool saturate) {
        y[0] = element<S, D>(x[0], Nearest(), saturate);
        y[1] = element<S, D>(x[1], Nearest(), saturate);
    }
};

/*
 * Two adjacent elements as one word, and back. By memcpy: nvcc does not always see that shifts and ors
 * of the parts are the whole, and then takes a dozen instructions for eight bytes.
 */
template <class Word, class T>
__device__ __forceinline__ Word joined(const T *x) {
    static_assert(sizeof(Word) == 2 * sizeof(T), "a word is two neighbours");
    Word both;
    memcpy(&both, x, sizeof(both));
    return both;
}

template <class Word, class T>
__device__ __forceinline__ void split(Word both, T *y) {
    static_assert(sizeof(Word) == 2 * sizeof(T), "a word is two neighbours");
    memcpy(y, &both, sizeof(both));
}

/* Replaces infinity by the largest finite number, in a 16-bit IEEE format. */
template <class D>
__device__ __forceinline__ void clamp_infinity(u16 *y) {
    if ((y[0] & 0x7FFF) == D::OVERFLOW) y[0]--;
    if ((y[1] & 0x7FFF) == D::OVERFLOW) y[1]--;
}

template <>
struct Hardware<F32, F16> {
    static __device__ __forceinline__ void two(const u32 *x, u16 *y, bool saturate) {
        const float a = __uint_as_float(x[0]), b = __uint_as_float(x[1]);
#if __CUDA_ARCH__ >= 800
        u32 both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
        split(both, y);
#else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y[0]) : "f"(a));
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y[1]) : "f"(b));
#endif
        if (saturate) clamp_infinity<F16>(y);
    }
};

#if __CUDA_ARCH__ >= 800
template <>
struct Hardware<F32, BF16> {
    static __device__ __forceinline__ void two(const u32 *x, u16 *y, bool saturate) {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
            : "=r"(both)
            : "f"(__uint_as_float(x[1])), "f"(__uint_as_float(x[0])));
        split(both, y);
        if (saturate) clamp_infinity<BF16>(y);
    }
};
#endif

template <>
struct Hardware<F16, F32> {
    static __device__ __forceinline__ void two(const u16 *x, u32 *y, bool) {
        float a, b;
        asm("cvt.f32.f16 %0, %1;" : "=f"(a) : "h"(x[0]));
        asm("cvt.f32.f16 %0, %1;" : "=f"(b) : "h"(x[1]));
        /* The instruction's result for a NaN is not documented. */
        y[0] = a == a ? __float_as_uint(a) : F32::QNAN;
        y[1] = b == b ? __float_as_uint(b) : F32::QNAN;
    }
};

#if __CUDA_ARCH__ >= 890
/*
 * The FP8 instructions saturate. Without saturation, a magnitude above the last one that rounds to
 * MAX becomes OVERFLOW: above 464 in E4M3, where the tie goes to the even 448, and from 61440 in
 * E5M2, where the tie goes to the even code of infinity.
 */
template <class D>
__device__ __forceinline__ bool beyond(float magnitude) {
    return SAME<D, E4M3> ? magnitude > 464.0f : magnitude >= 61440.0f;
}

template <class D>
__device__ __forceinline__ void undo_saturation(float a, float b, u8 *y) {
    if (beyond<D>(fabsf(a))) y[0] = (y[0] & 0x80) | D::OVERFLOW;
    if (beyond<D>(fabsf(b))) y[1] = (y[1] & 0x80) | D::OVERFLOW;
}

template <class D>
struct HardwareF32ToFp8 {
    static __device__ __forceinline__ void two(const u32 *x, u8 *y, bool saturate) {
        const float a = __uint_as_float(x[0]), b = __uint_as_float(x[1]);
        u16 both;
        if constexpr (SAME<D, E4M3>) {
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
        } else {
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
        }
        split(both, y);
        if (!saturate) undo_saturation<D>(a, b, y);
    }
};
template <>
struct Hardware<F32, E4M3> : HardwareF32ToFp8<E4M3> {};
template <>
struct Hardware<F32, E5M2> : HardwareF32ToFp8<E5M2> {};

template <class D>
struct HardwareF16ToFp8 {
    static __device__ __forceinline__ void two(const u16 *x, u8 *y, bool saturate) {
        const u32 halves = joined<u32>(x);
        u16 both;
        u32 over; /* all ones in the half whose magnitude does not round to MAX */
        if constexpr (SAME<D, E4M3>) {
            asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(both) : "r"(halves));
            asm("set.gt.u32.f16x2 %0, %1, %2;" : "=r"(over) : "r"(halves & 0x7FFF7FFF), "r"(0x5F405F40)); /* 464 */
        } else {
            asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(both) : "r"(halves));
            asm("set.ge.u32.f16x2 %0, %1, %2;" : "=r"(over) : "r"(halves & 0x7FFF7FFF), "r"(0x7B807B80)); /* 61440 */
        }
        static_assert(D::OVERFLOW == D::MAX + 1, "the code after MAX is OVERFLOW");
        if (!saturate) both += (u16)(__byte_perm(over, 0, 0x4420) & 0x0101);
        split(both, y);
    }
};
template <>
struct Hardware<F16, E4M3> : HardwareF16ToFp8<E4M3> {};
template <>
struct Hardware<F16, E5M2> : HardwareF16ToFp8<E5M2> {};

template <class S>
struct HardwareFp8ToF16 {
    static __device__ __forceinline__ void two(const u8 *x, u16 *y, bool) {
        const u16 bytes = joined<u16>(x);
        u32 both;
        if constexpr (SAME<S, E4M3>) {
            asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(bytes));
        } else {
            asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(both) : "h"(bytes));
        }
        split(both, y);
    }
};
template <>
struct Hardware<E4M3, F16> : HardwareFp8ToF16<E4M3> {};
template <>
struct Hardware<E5M2, F16> : HardwareFp8ToF16<E5M2> {};
#endif

/*
 * In two steps, of which the first is exact. If D holds every value of S, an infinity stays one,
 * whatever the overflow mode. The second step knows only Via, which D may not hold.
 */
template <class S, class Via, class D>
struct HardwareVia {
    static __device__ __forceinline__ void two(const typename S::Bits *x, typename D::Bits *y, bool saturate) {
        typename Via::Bits wide[2];
        Hardware<S, Via>::two(x, wide, false);
        Hardware<Via, D>::two(wide, y, saturate && !EXACT<S, D>);
    }
};
template <>
struct Hardware<E4M3, F32> : HardwareVia<E4M3, F16, F32> {};
template <>
struct Hardware<E5M2, F32> : HardwareVia<E5M2, F16, F32> {};
template <>
struct Hardware<F16, BF16> {
    static __device__ __forceinline__ void two(const u16 *x, u16 *y, bool saturate) {
        float wide[2]; /* any NaN will do: the next conversion turns every one into QNAN */
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide[0]) : "h"(x[0]));
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide[1]) : "h"(x[1]));
        const u32 bits[2] = {__float_as_uint(wide[0]), __float_as_uint(wide[1])};
        Hardware<F32, BF16>::two(bits, y, saturate);
    }
};
template <>
struct Hardware<BF16, F16> : HardwareVia<BF16, F32, F16> {};
/* Every NaN of BF16 is a NaN of F32, which the next conversion turns into QNAN. */
template <>
struct Hardware<BF16, E4M3> : HardwareVia<BF16, F32, E4M3> {};
template <>
struct Hardware<BF16, E5M2> : HardwareVia<BF16, F32, E5M2> {};
/* Every value of either is a value of F16 and of BF16, so both steps to BF16 are exact. */
template <>
struct Hardware<E4M3, BF16> : HardwareVia<E4M3, F16, BF16> {};
template <>
struct Hardware<E5M2, BF16> : HardwareVia<E5M2, F16, BF16> {};
template <>
struct Hardware<E4M3, E5M2> : HardwareVia<E4M3, F16, E5M2> {};
template <>
struct Hardware<E5M2, E4M3> : HardwareVia<E5M2, F16, E4M3> {};

/* F64 to F32, rounded to odd; infinite only for infinities, NaN only for NaN. */
__device__ __forceinline__ u32 round_to_odd(u64 x) {
    const double value = __longlong_as_double((i64)x);
    const float toward_zero = __double2float_rz(value);
    const u32 bits = __float_as_uint(toward_zero);
    return (double)toward_zero == value ? bits : bits | 1;
}

template <class D>
struct HardwareFromF64 {
    static __device__ __forceinline__ void two(const u64 *x, u16 *y, bool saturate) {
        const u32 odd[2] = {round_to_odd(x[0]), round_to_odd(x[1])};
        Hardware<F32, D>::two(odd, y, saturate);
    }
};
template <>
struct Hardware<F64, F16> : HardwareFromF64<F16> {};
template <>
struct Hardware<F64, BF16> : HardwareFromF64<BF16> {};

template <>
struct Hardware<F64, F32> {
    static __device__ __forceinline__ u32 one(u64 x, bool saturate) {
        const double value = __longlong_as_double((i64)x);
        u32 bits = __float_as_uint(__double2float_rn(value));
        if (saturate && (bits & 0x7FFFFFFF) == F32::OVERFLOW) bits--;
        return value == value ? bits : F32::QNAN;
    }
    static __device__ __forceinline__ void two(const u64 *x, u32 *y, bool saturate) {
        y[0] = one(x[0], saturate);
        y[1] = one(x[1], saturate);
    }
};

template <>
struct Hardware<F32, F64> {
    static __device__ __forceinline__ u64 one(u32 x) {
        const float value = __uint_as_float(x);
        return value == value ? (u64)__double_as_longlong((double)value) : F64::QNAN;
    }
    static __device__ __forceinline__ void two(const u32 *x, u64 *y, bool) {
        y[0] = one(x[0]);
        y[1] = one(x[1]);
    }
};

}  // namespace wp

#endif /* WARPOOL_HARDWARE_CUH */
