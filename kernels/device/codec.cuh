/*
 * codec.cuh: groups of neighbours from scaled values to packed codes, and back.
 *
 * Each gives the bits that quant.cuh gives. The 6-bit formats are rounded by the instructions of the
 * 8-bit ones with as many bits of significand: with the exponents moved so that the smallest normal
 * numbers meet, the codes are the same, and moving them is exact.
 */
#ifndef WARPOOL_CODEC_CUH
#define WARPOOL_CODEC_CUH

#include "ops.cuh"
#include "quant.cuh"
#include "vector.cuh"

namespace wp {

/* The F32 value of a code of S; what becomes of the bits of a NaN does not matter. */
template <class S>
__device__ __forceinline__ float to_float(typename S::Bits x) {
    if constexpr (SAME<S, F32>) {
        return __uint_as_float(x);
    } else if constexpr (SAME<S, BF16>) {
        return __uint_as_float((u32)x << 16);
    } else {
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
        return y;
    }
}

/* The largest magnitude of V neighbours, as F32 bits. */
template <class S, int V>
__device__ __forceinline__ u32 largest_of(const Vector<typename S::Bits, V> &x) {
    if constexpr (SAME<S, F32>) {
        u32 most = x.v[0] & 0x7FFFFFFF;
#pragma unroll
        for (int i = 1; i < V; i++) most = max(most, x.v[i] & 0x7FFFFFFF);
        return most;
    } else {
        /* Two at a time: magnitudes are in the order of their bits. */
        const Words<u16, V> words = bits_as<Words<u16, V>>(x);
        u32 most = words.w[0] & 0x7FFF7FFF;
#pragma unroll
        for (int i = 1; i < V / 2; i++) most = __vmaxu2(most, words.w[i] & 0x7FFF7FFF);
        return widen<S, F32>((u16)max(most & 0xFFFF, most >> 16));
    }
}

/* Codes side by side, the first in the lowest bits. */
template <class Q, int V>
__device__ __forceinline__ u64 packed(const u32 (&codes)[V]) {
    constexpr int HALF = V * Q::SIZE > 32 ? V / 2 : V;
    u32 low = codes[0], high = 0;
#pragma unroll
    for (int i = 1; i < HALF; i++) low |= codes[i] << (i * Q::SIZE);
    if constexpr (HALF < V) {
        high = codes[HALF];
#pragma unroll
        for (int i = HALF + 1; i < V; i++) high |= codes[i] << ((i - HALF) * Q::SIZE);
    }
    return low | (u64)high << (HALF * Q::SIZE);
}

/* `y` to nearest in 8 bits, by the instruction where there is one. */
template <class Q>
__device__ __forceinline__ u32 two_bytes(float a, float b) {
    const u32 bits[2] = {__float_as_uint(a), __float_as_uint(b)};
    u8 both[2];
    Hardware<F32, Q>::two(bits, both, true);
    return joined<u16>(both);
}

/* A 6-bit format as an 8-bit one with another bias; others as themselves. */
template <class Q>
struct Stand {
    using Format = Q;
    static constexpr float SHIFT = 1.0f;
};
template <>
struct Stand<E2M3> {
    using Format = E4M3;
    static constexpr float SHIFT = 1.0f / 64; /* 2^(1 - 7) */
};
template <>
struct Stand<E3M2> {
    using Format = E5M2;
    static constexpr float SHIFT = 1.0f / 4096; /* 2^(3 - 15) */
};

/* To nearest in E2M1, for numbers: a sum whose last bit is a step of the result rounds to it. */
__device__ __forceinline__ u32 e2m1_nearest(float y) {
    const float size = fminf(fabsf(y), 6.0f);
    const u32 power = max(__float_as_uint(size) & F32::OVERFLOW, 0x3F800000u);
    /* Its two steps more, an even number, change no tie. */
    const u32 sum = __float_as_uint(__fadd_rn(size, __uint_as_float(power + (22u << F32::MAN) + 2)));
    /* The lowest bits of the sum count steps; each power of two above 1 is two codes further. */
    return ((sum + (power >> 22)) & 7) | (__float_as_uint(y) >> 28 & ~7u);
}

/*
 * Four bytes of a stand-in to four codes of 6 bits, 24 in all. What their block's largest magnitude was scaled
 * to is below twice the power of two of the largest code: so what rounds beyond that code is the next one.
 */
__device__ __forceinline__ u32 six_bits(u32 bytes) {
    bytes -= (bytes & 0x20202020) >> 5;
    const u32 codes = (bytes & 0x1F1F1F1F) | (bytes >> 2 & 0x20202020);
    const u32 pairs = (codes & 0x003F003F) | (codes >> 2 & 0x0FC00FC0);
    return (pairs & 0xFFF) | (pairs >> 4 & 0xFFF000);
}

/*
 * Integers: the last bits of a sum with 1.5 * 2^23. Their scale was found from themselves, so that they need no
 * bounds but where a zero point, itself rounded, is added.
 */
template <class Q, int V>
__device__ __forceinline__ u64 nearest_integers(const float (&y)[V], i32 zero, i32 lowest) {
    u32 codes[V];
#pragma unroll
    for (int i = 0; i < V; i++) codes[i] = __float_as_uint(y[i] + 12582912.0f);
    if (lowest != -Q::HIGH) {
#pragma unroll
        for (int i = 0; i < V; i++) codes[i] = (u32)min(max((i32)codes[i] - 0x4B400000 + zero, lowest), Q::HIGH);
    }
    if constexpr (Q::SIZE == 8) {
        u32 words[V / 4];
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            const u32 low = __byte_perm(codes[i], codes[i + 1], 0x0040), high = __byte_perm(codes[i + 2], codes[i + 3], 0x0040);
            words[i / 4] = __byte_perm(low, high, 0x5410);
        }
        return words[0] | (u64)words[V / 4 - 1] << (8 * (V - 4));
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) codes[i] &= (1u << Q::SIZE) - 1;
        return packed<Q>(codes);
    }
}

/* Of values that are scaled, and shifted for their stand-in. What becomes of NaN does not matter but in 8 bits. */
template <class Q, int V>
__device__ __forceinline__ u64 encode_nearest(const float (&y)[V], i32 zero, i32 lowest) {
    if constexpr (INTEGER<Q>) {
        return nearest_integers<Q>(y, zero, lowest);
    } else if constexpr (Q::SIZE >= 6) {
        using F = typename Stand<Q>::Format;
        constexpr bool SIX = Q::SIZE == 6;
        const u32 low = two_bytes<F>(y[0], y[1]) | two_bytes<F>(y[2], y[3]) << 16;
        if constexpr (V == 4) return SIX ? six_bits(low) : low;
        const u32 high = two_bytes<F>(y[V - 4], y[V - 3]) | two_bytes<F>(y[V - 2], y[V - 1]) << 16;
        return SIX ? six_bits(low) | (u64)six_bits(high) << 24 : low | (u64)high << 32;
    } else {
        u32 codes[V];
#pragma unroll
        for (int i = 0; i < V; i++) codes[i] = e2m1_nearest(y[i]);
        return packed<Q>(codes);
    }
}

template <class Q, int V>
__device__ __forceinline__ u64 encode_stochastic(const float (&y)[V], i32 zero, i32 lowest, u64 seed, u64 index) {
    u32 random[V / 2], codes[V];
    philox_pairs<V>(random, seed, index);
#pragma unroll
    for (int i = 0; i < V; i += 2) {
        if constexpr (INTEGER<Q>) {
            codes[i] = integer_code<Q>(y[i], zero, lowest, true, random[i / 2] & 0xFFFF);
            codes[i + 1] = integer_code<Q>(y[i + 1], zero, lowest, true, random[i / 2] >> 16);
        } else if constexpr (Q::SIZE == 8) {
            const u32 bits[2] = {__float_as_uint(y[i]), __float_as_uint(y[i + 1])};
            u8 both[2];
            two_by_mode<Q>(bits, both, Stochastic(), true, random[i / 2]);
            codes[i] = both[0];
            codes[i + 1] = both[1];
        } else {
            codes[i] = code_of<Q>(y[i], Stochastic(), random[i / 2] & 0xFFFF);
            codes[i + 1] = code_of<Q>(y[i + 1], Stochastic(), random[i / 2] >> 16);
        }
    }
    return packed<Q>(codes);
}

/* How one tensor's values become codes. */
struct Coding {
    u64 seed;
    i32 lowest;
    bool stochastic;
};

/* The packed codes of V neighbours, the first numbered `index`; NEAREST: whatever `how` says. */
template <class S, class Q, bool NEAREST, int V>
__device__ __forceinline__ u64 encode(const Vector<typename S::Bits, V> &x, const Scale &scale, const Coding &how,
                                      u64 index) {
    const bool nearest = NEAREST || !how.stochastic;
    /* Exact: the scales of formats with a stand-in are powers of two. */
    const float factor = nearest ? scale.inverse * Stand<Q>::SHIFT : scale.inverse;
    float y[V];
#pragma unroll
    for (int i = 0; i < V; i++) y[i] = to_float<S>(x.v[i]) * factor;
    u64 codes;
    if (nearest) {
        codes = encode_nearest<Q>(y, scale.zero, how.lowest);
    } else {
        codes = encode_stochastic<Q>(y, scale.zero, how.lowest, how.seed, index);
    }
    /* The formats without NaN. */
    if constexpr (Q::SIZE < 8 || INTEGER<Q>) return scale.inverse == scale.inverse ? codes : 0;
    return codes;
}

/*
 * The values of V packed codes before they are scaled; what becomes of the bits of a NaN does not
 * matter. An integer is the last bits of a sum with 2^23. A format without NaN is F32 with another bias.
 */
template <class Q, int V>
__device__ __forceinline__ void decode(u64 codes, i32 zero, float (&y)[V]) {
    if constexpr (SAME<Q, E4M3> || SAME<Q, E5M2>) {
#if __CUDA_ARCH__ >= 890
#pragma unroll
        for (int i = 0; i < V; i += 2) {
            u8 two[2];
            u16 halves[2];
            split((u16)(codes >> (8 * i)), two);
            Hardware<Q, F16>::two(two, halves, false);
            y[i] = to_float<F16>(halves[0]);
            y[i + 1] = to_float<F16>(halves[1]);
        }
#else
#pragma unroll
        for (int i = 0; i < V; i++) y[i] = value_of<Q>((u32)(codes >> (8 * i)) & 0xFF, 0);
#endif
    } else if constexpr (INTEGER<Q>) {
        constexpr u32 MASK = (1u << Q::SIZE) - 1, MIDDLE = Q::HIGH + 1;
        const float from = 8388608.0f + (float)((i32)MIDDLE + zero);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const u32 code = ((u32)(codes >> (i * Q::SIZE)) & MASK) ^ MIDDLE;
            y[i] = __uint_as_float(0x4B000000 | code) - from;
        }
    } else {
        constexpr u32 MASK = (1u << (Q::SIZE - 1)) - 1;
        constexpr float POWER = SAME<Q, E3M2> ? 0x1p124f : 0x1p126f; /* 2^(127 - BIAS) */
#pragma unroll
        for (int i = 0; i < V; i++) {
            const u32 code = (u32)(codes >> (i * Q::SIZE));
            const u32 bits = (code & MASK) << (F32::MAN - Q::MAN) | (code << (32 - Q::SIZE) & F32::SIGN);
            y[i] = __uint_as_float(bits) * POWER;
        }
    }
}

}  // namespace wp

#endif /* WARPOOL_CODEC_CUH */
