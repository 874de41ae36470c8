/*
 * quant.cuh: scales, and codes from scaled values, one at a time.
 *
 * E2M3, E3M2 and E2M1 are the element formats of the OCP Microscaling Formats (MX) Specification,
 * version 1.0: no infinity, no NaN; all ones is the largest magnitude. Their OVERFLOW is not a code,
 * because narrowing to them always saturates; NaN becomes 0.
 */
#ifndef WARPOOL_QUANT_CUH
#define WARPOOL_QUANT_CUH

#include "fuse.cuh"

namespace wp {

using i32 = int;

using E2M3 = Format<u8, WP_E2M3, 6, 3, 1, 0x1F, 0x20, 0>;
using E3M2 = Format<u8, WP_E3M2, 6, 2, 3, 0x1F, 0x20, 0>;
using E2M1 = Format<u8, WP_E2M1, 4, 1, 1, 0x07, 0x08, 0>;

/* Integers of a sign and SIZE - 1 bits. */
template <wp_type Id, int Size>
struct Integer {
    using Bits = u8;
    static constexpr wp_type ID = Id;
    static constexpr int SIZE = Size;
    static constexpr i32 HIGH = (1 << (Size - 1)) - 1;
};
using I8 = Integer<WP_I8, 8>;
using I4 = Integer<WP_I4, 4>;

template <class Q>
constexpr bool INTEGER = SAME<Q, I8> || SAME<Q, I4>;

/* The largest value of a format, and the exponent of the power of two at or below it. */
template <class Q>
constexpr float TOP = SAME<Q, E4M3> ? 448.0f : SAME<Q, E5M2> ? 57344.0f : SAME<Q, E2M3> ? 7.5f
                    : SAME<Q, E3M2> ? 28.0f : SAME<Q, E2M1> ? 6.0f : SAME<Q, I8> ? 127.0f : 7.0f;
template <class Q>
constexpr int TOP_POWER = SAME<Q, E4M3> ? 8 : SAME<Q, E5M2> ? 15 : SAME<Q, E3M2> ? 4 : 2;

/* The factor for the elements of one scale, the scale as stored, and the zero point. */
struct Scale {
    float inverse;
    u32 stored; /* F32 bits, or a byte */
    i32 zero;
};

constexpr u32 SMALLEST_SCALE = 0x00800000; /* 2^-126: its inverse is finite */

/*
 * A NaN scale makes every code NaN or 0. An inverse that is not finite must not make other codes.
 */
WP_HD Scale checked(Scale s, bool bad) {
    bad = bad || !((bits_as<u32>(s.inverse) & 0x7FFFFFFF) <= F32::MAX);
    s.inverse = bad ? bits_as<float>((u32)F32::QNAN) : s.inverse;
    return s;
}

WP_HD Scale scale_f32(u32 amax, float top) {
    const float least = bits_as<float>((u32)SMALLEST_SCALE);
    float s = bits_as<float>(amax) / top;
    s = s < least ? least : s;
    s = amax == 0 ? 1.0f : s;
    const bool bad = amax > F32::MAX;
    return checked({1.0f / s, bad ? F32::QNAN : bits_as<u32>(s), 0}, bad);
}

WP_HD Scale scale_e8m0(u32 amax, int top_power) {
    const int field = (int)(amax >> F32::MAN);
    int code = field > top_power ? field - top_power : 0;
    code = amax == 0 ? 127 : code;
    const bool bad = amax > F32::MAX;
    return checked({bits_as<float>((u32)(254 - code) << F32::MAN), bad ? 0xFF : (u32)code, 0}, bad);
}

/* The value of a code of an E4M3 scale, and the code nearest to a value, at most the largest. */
WP_HD float e4m3_value(u32 code) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u32 halves;
    float value;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)code));
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)halves));
    return value;
#else
    return bits_as<float>(widen<E4M3, F32>((u8)code));
#endif
}

WP_HD u32 e4m3_nearest(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(value));
    return both & 0xFF;
#else
    return narrow<F32, E4M3>(bits_as<u32>(value), Nearest(), true);
#endif
}

WP_HD Scale scale_e4m3(u32 amax, float tensor) {
    const float wanted = bits_as<float>(amax) / (6.0f * tensor);
    u32 code = e4m3_nearest(wanted);
    code = code == 0 ? 1 : code;
    code = amax == 0 ? 0x38 : code; /* 1.0 */
    /*
     * Also for a tensor's scale of 0 or NaN: with the largest scale, values that are not 0 would come
     * back as 0.
     */
    const bool bad = amax != 0 && (bits_as<u32>(wanted) & 0x7FFFFFFF) > F32::MAX;
    return checked({1.0f / (e4m3_value(code) * tensor), bad ? 0x7F : code, 0}, bad);
}

template <class Q>
WP_HD Scale scale_of(u32 kind, u32 amax, float tensor) {
    /* Only the kinds that is_quantization() allows for the format. */
    if constexpr (!INTEGER<Q>) {
        if (Q::SIZE == 6 || kind == WP_SCALE_E8M0) return scale_e8m0(amax, TOP_POWER<Q>);
        if constexpr (SAME<Q, E2M1>) return scale_e4m3(amax, tensor);
    }
    return scale_f32(amax, TOP<Q>);
}

/* The scale given for the whole tensor. */
WP_HD Scale scale_given(float s) { return checked({1.0f / s, 0, 0}, false); }

/* The nearest integer, ties to even; |y| is at most 2^22, so the sum's last bit has weight 1. */
WP_HD i32 nearest_integer(float y) { return bits_as<i32>(y + 12582912.0f) - 0x4B400000; }

/* Limits a number to between -most and most. */
WP_HD float clamped(float y, float most) {
#ifdef __CUDA_ARCH__
    return fminf(fmaxf(y, -most), most);
#else
    y = y > most ? most : y;
    return y < -most ? -most : y;
#endif
}

/*
 * `low`: the magnitude of the smallest value, which is at most 0; `high`: of the largest, which is at
 * least 0.
 */
template <class Q>
WP_HD Scale scale_between(u32 low, u32 high) {
    constexpr float STEPS = (float)(2 * Q::HIGH + 1);
    const float least = bits_as<float>((u32)SMALLEST_SCALE);
    float s = bits_as<float>(high) / STEPS + bits_as<float>(low) / STEPS;
    s = s < least ? least : s;
    s = (low | high) == 0 ? 1.0f : s;
    const bool bad = low > F32::MAX || high > F32::MAX;
    const float inverse = 1.0f / s;
    i32 zero = bad || (low | high) == 0 ? 0 : nearest_integer(bits_as<float>(low) * inverse) - Q::HIGH - 1;
    zero = zero > Q::HIGH ? Q::HIGH : zero;
    return checked({inverse, bad ? F32::QNAN : bits_as<u32>(s), zero}, bad);
}

/* The code of the scaled value `y` in a float format; `random` is 16 bits, for Stochastic. */
template <class Q, class Mode>
WP_HD u32 code_of(float y, const Mode &mode, u32 random) {
    return narrow<F32, Q>(bits_as<u32>(y), mode, true, random);
}

/* The integer code, SIZE bits, of the scaled value `y`. `lowest` is the smallest code. */
template <class Q>
WP_HD u32 integer_code(float y, i32 zero, i32 lowest, bool stochastic, u32 random) {
    constexpr float BEYOND = 2.0f * (Q::HIGH + 1) + 1.0f;
    y = clamped(y == y ? y : 0.0f, BEYOND);
    i32 q;
    if (stochastic) {
        const float fixed = y * 65536.0f;
        i32 whole = (i32)fixed;
        whole -= (float)whole > fixed;
        q = (whole + (i32)random) >> 16;
    } else {
        q = nearest_integer(y);
    }
    q += zero;
    q = q > Q::HIGH ? Q::HIGH : q;
    q = q < lowest ? lowest : q;
    return (u32)q & ((1u << Q::SIZE) - 1);
}

/* The value of a code before it is scaled. */
template <class Q>
WP_HD float value_of(u32 code, i32 zero) {
    if constexpr (INTEGER<Q>) {
        const i32 signed_code = (i32)(code << (32 - Q::SIZE)) >> (32 - Q::SIZE);
        return (float)(signed_code - zero);
    } else {
        return bits_as<float>(widen<Q, F32>((u8)code));
    }
}

/* A stored scale as a number: F32 bits, otherwise a byte. */
WP_HD float scale_value(u32 kind, u32 stored, float tensor) {
    if (kind == WP_SCALE_F32) return bits_as<float>(stored);
    if (kind == WP_SCALE_E4M3) return e4m3_value(stored) * tensor;
    const u32 normal = stored << F32::MAN;
    return bits_as<float>(stored == 0xFF ? (u32)F32::QNAN : stored == 0 ? SMALLEST_SCALE >> 1 : normal);
}

/* The index of the scale of block-row `r` and block-column `c`; see wp_scale_layout. */
WP_HD u64 scale_index(u32 layout, u64 pitch, u64 r, u64 c) {
    if (layout == WP_SCALES_BY_ROW) return r * pitch + c;
    if (layout == WP_SCALES_BY_COLUMN) return c * pitch + r;
    return (r / 128 * (pitch / 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}

WP_HD u64 rounded_up(u64 n, u64 to) { return (n + to - 1) / to * to; }

/* Whether the arguments name a supported operation: `quantize` or its inverse. */
inline bool is_quantization(const wp_quantize &a, bool quantize) {
    const bool integer = a.format == WP_I8 || a.format == WP_I4;
    const bool byte = a.format == WP_E4M3 || a.format == WP_E5M2;
    const bool known = integer || byte || a.format == WP_E2M3 || a.format == WP_E3M2 || a.format == WP_E2M1;
    if (a.type > WP_BF16 || !known || a.kind > WP_SCALE_E4M3 || a.layout > WP_SCALES_TILED) return false;
    if (quantize && a.rounding != WP_NEAREST && a.rounding != WP_STOCHASTIC) return false;
    if (a.zeros != 0 && !integer) return false;
    if (a.kind == WP_SCALE_F32 ? !(integer || byte) : a.granularity != WP_PER_GROUP || integer) return false;
    if (a.kind == WP_SCALE_E4M3 && (a.format != WP_E2M1 || a.tensor_scale == 0)) return false;
    switch (a.granularity) {
        case WP_PER_TENSOR:
        case WP_PER_SQUARE: return byte && a.layout != WP_SCALES_TILED;
        case WP_PER_ROW: return a.layout != WP_SCALES_TILED;
        case WP_PER_GROUP:
            if (a.layout == WP_SCALES_TILED && (a.kind == WP_SCALE_F32 || a.scales_pitch % 4 != 0)) return false;
            return a.group == 16 || a.group == 32 || a.group == 64 || a.group == 128;
        default: return false;
    }
}

/* Calls visit(S()) for the format of the values. */
template <class Visit>
int with_values(u32 type, int otherwise, const Visit &visit) {
    switch (type) {
        case WP_F32: return visit(F32());
        case WP_F16: return visit(F16());
        case WP_BF16: return visit(BF16());
        default: return otherwise;
    }
}

/* Calls visit(D()) for the destination of a transposition. */
template <class Visit>
int with_narrow(u32 type, int otherwise, const Visit &visit) {
    switch (type) {
        case WP_F16: return visit(F16());
        case WP_BF16: return visit(BF16());
        case WP_E4M3: return visit(E4M3());
        case WP_E5M2: return visit(E5M2());
        default: return otherwise;
    }
}

/* Calls visit(Q()) for the format of the codes. */
template <class Visit>
int with_codes(u32 format, int otherwise, const Visit &visit) {
    switch (format) {
        case WP_E4M3: return visit(E4M3());
        case WP_E5M2: return visit(E5M2());
        case WP_E2M3: return visit(E2M3());
        case WP_E3M2: return visit(E3M2());
        case WP_E2M1: return visit(E2M1());
        case WP_I8: return visit(I8());
        case WP_I4: return visit(I4());
        default: return otherwise;
    }
}

}  // namespace wp

#endif /* WARPOOL_QUANT_CUH */
