/*
 * codec.cuh: groups of adjacent elements from scaled values to packed codes, and back.
 *
 * Returns the same bits as quant.cuh. The 6-bit formats are rounded by the instructions for 8-bit
 * formats with as many significand bits. Exponents are shifted so that the smallest normal numbers
 * coincide; the codes are then the same, and the shift is exact.
 */
#ifndef WARPOOL_CODEC_CUH
#define WARPOOL_CODEC_CUH

#include "narrow.cuh"
#include "ops.cuh"
#include "quant.cuh"
#include "vector.cuh"

/* The compiled architecture; 0 on the host. */
#ifndef __CUDA_ARCH__
#define WP_ARCH 0
#else
#define WP_ARCH __CUDA_ARCH__
#endif

namespace wp {

/* The F32 value of a code of S; the bits of a NaN do not matter. */
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

/* The same for a slot. BF16 is done by words, because nvcc takes two instructions for a half. */
template <class S, int V>
__device__ __forceinline__ void to_floats(const Words<typename S::Bits, V> &x, float (&y)[V]) {
    const Vector<typename S::Bits, V> values = bits_as<Vector<typename S::Bits, V>>(x);
#pragma unroll
    for (int i = 0; i < V; i++) {
        if constexpr (SAME<S, BF16>) {
            y[i] = __uint_as_float(i % 2 == 0 ? x.w[i / 2] << 16 : x.w[i / 2] & 0xFFFF0000);
        } else {
            y[i] = to_float<S>(values.v[i]);
        }
    }
}

/* a * b + c. nvcc would split it up if it sees that no bits overlap. */
__device__ __forceinline__ u32 multiply_add(u32 a, u32 b, u32 c) {
    u32 sum;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

/* The largest magnitude of V adjacent elements, as F32 bits. */
template <class S, int V>
__device__ __forceinline__ u32 largest_of(const Vector<typename S::Bits, V> &x) {
    if constexpr (SAME<S, F32>) {
        u32 most = x.v[0] & 0x7FFFFFFF;
#pragma unroll
        for (int i = 1; i < V; i++) most = max(most, x.v[i] & 0x7FFFFFFF);
        return most;
    } else {
        /* Two at a time: magnitudes compare like their bits. */
        const Words<u16, V> words = bits_as<Words<u16, V>>(x);
        u32 most = words.w[0] & 0x7FFF7FFF;
#pragma unroll
        for (int i = 1; i < V / 2; i++) most = __vmaxu2(most, words.w[i] & 0x7FFF7FFF);
        return widen<S, F32>((u16)max(most & 0xFFFF, most >> 16));
    }
}

/* Packs codes, the first in the lowest bits. */
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

/* `y` to nearest in 8 bits, by an instruction if there is one. */
template <class Q>
__device__ __forceinline__ u32 two_bytes(float a, float b) {
    const u32 bits[2] = {__float_as_uint(a), __float_as_uint(b)};
    u8 both[2];
    Hardware<F32, Q>::two(bits, both, true);
    return joined<u16>(both);
}

/*
 * The 8-bit format, with another bias, that stands in for a 6-bit one; other formats are their own.
 */
template <class Q>
struct Stand {
    using Format = Q;
    static constexpr float SHIFT = 1.0f;
};
template <>
struct Stand<E2M3> {
    using Format = E4M3;
    static constexpr float SHIFT = NARROW_CVT ? 1.0f : 1.0f / 64; /* 2^(1 - 7) */
};
template <>
struct Stand<E3M2> {
    using Format = E5M2;
    static constexpr float SHIFT = NARROW_CVT ? 1.0f : 1.0f / 4096; /* 2^(3 - 15) */
};

/* Packs codes of 4 bits by sums. Each word's last bits are a code, and its upper part is `above`. */
template <int V>
__device__ __forceinline__ u32 sum_of_codes(const u32 (&words)[V], u32 above) {
    u32 sum = words[V - 1], beyond = above;
#pragma unroll
    for (int i = V - 2; i >= 0; i--) {
        sum = multiply_add(sum, 16, words[i]);
        beyond = beyond * 16 + above;
    }
    return sum - beyond;
}

/*
 * What is known of the inverse of a scale, and of magnitudes times it. In the last case it is a power of two.
 */
enum class Scaled { ANY, POSITIVE_BELOW_16, POWER_BELOW_8 };

/*
 * The number of the E2M1 code nearest to a magnitude, plus 2^23. Numbers rise by 2 per unit up to 2, by 1 up to 4,
 * and by a half up to 6. So the number is the least of three lines, each rounded once to an integer, ties to even, as
 * required.
 */
__device__ __forceinline__ u32 e2m1_number(float size) {
    const u32 low = __float_as_uint(__fmaf_rn(size, 2.0f, 8388608.0f)), middle = __float_as_uint(__fadd_rn(size, 8388610.0f));
    return min(min(low, middle), __float_as_uint(__fmaf_rn(size, 0.5f, 8388612.0f)));
}

/* Limits each of eight numbers to 7. */
__device__ __forceinline__ u32 held_numbers(u32 numbers) {
    const u32 beyond = numbers & 0x88888888;
    return (numbers | (beyond - (beyond >> 3))) & 0x77777777;
}

/* x * y + z for two BF16 numbers in each word, rounded once. */
__device__ __forceinline__ u32 fma_bf16x2(u32 x, u32 y, u32 z) {
    u32 sums;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(x), "r"(y), "r"(z));
    return sums;
}

__device__ __forceinline__ u32 min_bf16x2(u32 x, u32 y) {
    u32 least;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(least) : "r"(x), "r"(y));
    return least;
}

/*
 * The numbers of eight E2M1 codes, from BF16 times a power of two, two at a time; exact except far below the smallest
 * code. Below 8, the least of three lines is the number of a code, or one more than the last. The last bit of a sum
 * with 64 has the weight 1/2.
 */
__device__ __forceinline__ u32 e2m1_numbers(const u32 (&w)[4], float power) {
    const u32 scale = __byte_perm(__float_as_uint(power), 0, 0x3232);
    u32 sums[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 y = fma_bf16x2(w[i] & 0x7FFF7FFF, scale, 0x80008000);
        const u32 low = fma_bf16x2(y, 0x3F803F80, 0x42804280); /* y + 64 */
        const u32 middle = fma_bf16x2(y, 0x3F003F00, 0x42824282), high = fma_bf16x2(y, 0x3E803E80, 0x42844284);
        sums[i] = min_bf16x2(min_bf16x2(low, middle), high);
    }
    /* Bytes do not carry into each other. */
    const u32 first = sums[1] * 256 + sums[0], second = sums[3] * 256 + sums[2];
    const u32 even = __byte_perm(first, second, 0x5410), odd = __byte_perm(first, second, 0x7632);
    return odd * 16 + even - (0xC2C2C2C2u * 16 + 0xC280C280u);
}

/* Moves the signs of values to the places of the signs of their 4-bit codes. */
template <class S, int V>
__device__ __forceinline__ u32 signs_of(const Words<typename S::Bits, V> &x, bool turned) {
    u32 even, odd; /* each sign is the highest bit of a byte */
    if constexpr (S::SIZE == 32) {
        even = __byte_perm(x.w[0], x.w[2], 0x4473);
        odd = __byte_perm(x.w[1], x.w[3], 0x4473);
    } else {
        const u32 first = __byte_perm(x.w[0], x.w[1], 0x7351), second = __byte_perm(x.w[2], x.w[3], 0x7351);
        even = __byte_perm(first, second, 0x5410);
        odd = __byte_perm(first, second, 0x7632);
    }
    constexpr u32 ALL = V == 8 ? 0x88888888 : 0x8888;
    return (((even >> 4 & 0x0F0F0F0F) | (odd & 0xF0F0F0F0)) ^ (turned ? ~0u : 0)) & ALL;
}

/* E2M1, rounded to nearest. */
template <class S, Scaled SCALED, int V>
__device__ __forceinline__ u32 e2m1_codes(const Words<typename S::Bits, V> &x, float inverse) {
    if constexpr (NARROW_CVT) {
        float y[V];
        u32 codes = 0;
        to_floats<S>(x, y);
#pragma unroll
        for (int i = 0; i < V; i += 2) codes |= two_narrow<E2M1>(y[i] * inverse, y[i + 1] * inverse) << (4 * i);
        return codes;
    }
    u32 numbers;
    if constexpr (SCALED == Scaled::POWER_BELOW_8 && SAME<S, BF16> && WP_ARCH >= 800) {
        numbers = e2m1_numbers(x.w, inverse);
    } else {
        float values[V];
        u32 words[V];
        to_floats<S>(x, values);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const float size = fabsf(values[i] * inverse);
            words[i] = e2m1_number(SCALED == Scaled::ANY ? fminf(size, 8.0f) : size);
        }
        numbers = sum_of_codes(words, 0x4B000000);
    }
    return held_numbers(numbers) | signs_of<S, V>(x, SCALED == Scaled::ANY && __float_as_uint(inverse) >> 31 != 0);
}

/* Packs four 6-bit codes, one per byte, into 24 bits. */
__device__ __forceinline__ u32 six_bits(u32 codes) {
    const u32 pairs = (codes & 0x003F003F) | (codes >> 2 & 0x0FC00FC0);
    return (pairs & 0xFFF) | (pairs >> 4 & 0xFFF000);
}

/*
 * Turns four bytes of a stand-in into 6-bit codes. The block's largest scaled magnitude is below twice the power of
 * two of the largest code, so a value that rounds beyond that code has the next number, which is lowered by one.
 */
__device__ __forceinline__ u32 from_stand_in(u32 bytes) {
    bytes -= (bytes & 0x20202020) >> 5;
    return six_bits((bytes & 0x1F1F1F1F) | (bytes >> 2 & 0x20202020));
}

/* The lowest byte of each word. */
template <int V>
__device__ __forceinline__ u64 packed_bytes(const u32 (&codes)[V]) {
    u32 words[V / 4];
#pragma unroll
    for (int i = 0; i < V; i += 4) {
        const u32 low = __byte_perm(codes[i], codes[i + 1], 0x0040), high = __byte_perm(codes[i + 2], codes[i + 3], 0x0040);
        words[i / 4] = __byte_perm(low, high, 0x5410);
    }
    return words[0] | (u64)words[V / 4 - 1] << (8 * (V - 4));
}

/* Integers limited to the range of Q, and packed. */
template <class Q, int V>
__device__ __forceinline__ u64 held_integers(const u32 (&codes)[V]) {
    u32 words[2] = {};
#pragma unroll
    for (int i = V - 2; i >= 0; i -= 2) {
        u32 &word = words[Q::SIZE == 8 && i >= 4];
        if constexpr (Q::SIZE == 8) {
            asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %0;" : "+r"(word) : "r"(codes[i + 1]), "r"(codes[i]));
        } else {
            asm("cvt.pack.sat.s4.s32.b32 %0, %1, %2, %0;" : "+r"(word) : "r"(codes[i + 1]), "r"(codes[i]));
        }
    }
    return words[0] | (u64)words[1] << 32;
}

/*
 * Integers are the last bits of a sum with 1.5 * 2^23. Their scale was computed from them, so they need limits
 * only if a zero point, itself rounded, is added.
 */
template <class Q, int V>
__device__ __forceinline__ u64 nearest_integers(const float (&y)[V], i32 zero, i32 lowest) {
    u32 codes[V];
#pragma unroll
    for (int i = 0; i < V; i++) codes[i] = __float_as_uint(y[i] + 12582912.0f);
    if (lowest != -Q::HIGH) {
#pragma unroll
        for (int i = 0; i < V; i++) codes[i] += (u32)zero - 0x4B400000;
        return held_integers<Q>(codes);
    }
    if constexpr (Q::SIZE == 4) return sum_of_codes(codes, 0x4B400000 - 8) ^ (V == 8 ? 0x88888888 : 0x8888);
    return packed_bytes(codes);
}

/* For values that are scaled, and shifted for their stand-in. The bits of NaN matter only in 8 bits. */
template <class Q, int V>
__device__ __forceinline__ u64 encode_nearest(const float (&y)[V], i32 zero, i32 lowest) {
    if constexpr (INTEGER<Q>) {
        return nearest_integers<Q>(y, zero, lowest);
    } else {
        using F = typename Stand<Q>::Format;
        constexpr bool SIX = Q::SIZE == 6;
        if constexpr (SIX && NARROW_CVT) {
            const u64 low = six_bits(two_narrow<Q>(y[0], y[1]) | two_narrow<Q>(y[2], y[3]) << 16);
            return V == 4 ? low : low | (u64)six_bits(two_narrow<Q>(y[V - 4], y[V - 3]) | two_narrow<Q>(y[V - 2], y[V - 1]) << 16) << 24;
        }
        const u32 low = two_bytes<F>(y[0], y[1]) | two_bytes<F>(y[2], y[3]) << 16;
        if constexpr (V == 4) return SIX ? from_stand_in(low) : low;
        const u32 high = two_bytes<F>(y[V - 4], y[V - 3]) | two_bytes<F>(y[V - 2], y[V - 1]) << 16;
        return SIX ? from_stand_in(low) | (u64)from_stand_in(high) << 24 : low | (u64)high << 32;
    }
}

/*
 * The magnitude of a code of Q, rounded by 16 random bits. Multiplied by a power of two, the smallest normal number
 * of Q becomes that of F32. The product's bits, cut off at the last one, are then a code and its remainder, also for
 * subnormals. The random bits carry into the code. NaN becomes some code.
 */
template <class Q>
__device__ __forceinline__ u32 random_size(float y, u32 random) {
    constexpr int DROP = F32::MAN - Q::MAN, POWER = F32::BIAS - Q::BIAS;
    const u32 size = __float_as_uint(__fmul_rz(fabsf(y), __uint_as_float((u32)(F32::BIAS - POWER) << F32::MAN)));
    return min(multiply_add(random, 1u << (DROP - 16), size) >> DROP, (u32)Q::MAX);
}

/* Four signs as the highest bits of bytes, from element `from` on. */
template <class S, int V>
__device__ __forceinline__ u32 four_signs(const Words<typename S::Bits, V> &x, int from) {
    if constexpr (S::SIZE == 16) return __byte_perm(x.w[from / 2], x.w[from / 2 + 1], 0x7531) & 0x80808080;
    return __byte_perm(__byte_perm(x.w[0], x.w[1], 0x4473), __byte_perm(x.w[2], x.w[3], 0x4473), 0x5410) & 0x80808080;
}

/* The packed codes of V elements, from their magnitudes and the elements' signs, `turned` by a negative scale. */
template <class S, class Q, int V>
__device__ __forceinline__ u64 with_signs(const u32 (&sizes)[V], const Words<typename S::Bits, V> &x, bool turned) {
    if constexpr (Q::SIZE == 4) return sum_of_codes(sizes, 0) | signs_of<S, V>(x, turned);
    const u64 packed = packed_bytes(sizes), high = V == 8 ? four_signs<S, V>(x, V - 4) : 0;
    const u64 signs = (four_signs<S, V>(x, 0) | high << 32) ^ (turned ? 0x8080808080808080 : 0);
    if constexpr (Q::SIZE == 8) return packed | signs;
    const u64 bytes = packed | signs >> 2;
    return six_bits((u32)bytes) | (u64)six_bits((u32)(bytes >> 32)) << 24;
}

/* `random` has 16 bits for each of V adjacent elements, two per word. */
template <class S, class Q, int V>
__device__ __forceinline__ u64 encode_stochastic(const Words<typename S::Bits, V> &x, const Scale &scale, i32 lowest, const u32 (&random)[V / 2]) {
    float y[V];
    u32 codes[V];
    bool nan = false;
    to_floats<S>(x, y);
#pragma unroll
    for (int i = 0; i < V; i++) {
        y[i] = y[i] * scale.inverse;
        nan = nan || !(y[i] == y[i]);
        const u32 draw = i % 2 == 0 ? random[i / 2] & 0xFFFF : random[i / 2] >> 16;
        if constexpr (INTEGER<Q>) codes[i] = integer_code<Q>(y[i], scale.zero, lowest, true, draw);
        else codes[i] = random_size<Q>(y[i], draw);
    }
    if constexpr (INTEGER<Q>) {
        return packed<Q>(codes);
    } else {
        u64 all = with_signs<S, Q>(codes, x, __float_as_uint(scale.inverse) >> 31 != 0);
        if (Q::SIZE == 8 && nan) {
#pragma unroll
            for (int i = 0; i < V; i++)
                if (!(y[i] == y[i])) all = (all & ~(0xFFull << (8 * i))) | (u64)Q::QNAN << (8 * i);
        }
        return all;
    }
}

/* How one tensor's values become codes. */
struct Coding {
    u64 seed;
    i32 lowest;
    bool stochastic;
};

/* The codes, in formats without NaN, of values that have no scale. */
template <class Q>
__device__ __forceinline__ u64 unless_bad(u64 codes, const Scale &scale) {
    if constexpr (Q::SIZE < 8 || INTEGER<Q>) return scale.inverse == scale.inverse ? codes : 0;
    return codes;
}

/* The packed codes of V adjacent elements, rounded to nearest. */
template <class S, class Q, Scaled SCALED, int V>
__device__ __forceinline__ u64 encode_near(const Words<typename S::Bits, V> &x, const Scale &scale, i32 lowest) {
    if constexpr (SAME<Q, E2M1>) {
        return unless_bad<Q>(e2m1_codes<S, SCALED>(x, scale.inverse), scale);
    } else {
        /* Exact: scales of formats with a stand-in are powers of two. */
        const float factor = scale.inverse * Stand<Q>::SHIFT;
        float y[V];
        to_floats<S>(x, y);
#pragma unroll
        for (int i = 0; i < V; i++) y[i] = y[i] * factor;
        return unless_bad<Q>(encode_nearest<Q>(y, scale.zero, lowest), scale);
    }
}

/* Rounds by `how`; `index` is the number of the first element. */
template <class S, class Q, int V>
__device__ __forceinline__ u64 encode_by(const Words<typename S::Bits, V> &x, const Scale &scale, const Coding &how, u64 index) {
    if (!how.stochastic) return encode_near<S, Q, Scaled::ANY>(x, scale, how.lowest);
    u32 random[V / 2];
    philox_pairs<V>(random, how.seed, index);
    return unless_bad<Q>(encode_stochastic<S, Q>(x, scale, how.lowest, random), scale);
}

/*
 * The random bits for two slots of a thread, given the numbers of their first elements, which are multiples of V. The
 * generator makes the bits of 8 adjacent elements at once. For F32 these are the slots of two adjacent lanes, and
 * each lane makes those of one slot.
 */
template <class S, int V>
__device__ __forceinline__ void draw_two(u32 (&first)[V / 2], u32 (&second)[V / 2], u64 seed, u64 first_number, u64 second_number) {
    if constexpr (V == 8) {
        const Words4 x = philox(seed, first_number / 8), y = philox(seed, second_number / 8);
#pragma unroll
        for (int i = 0; i < 4; i++) first[i] = x.v[i], second[i] = y.v[i];
    } else {
        const bool odd = threadIdx.x % 2 != 0;
        const Words4 own = philox(seed, (odd ? second_number : first_number) / 8);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 kept = odd ? own.v[i + 2] : own.v[i], given = odd ? own.v[i] : own.v[i + 2];
            const u32 other = __shfl_xor_sync(0xFFFFFFFF, given, 1);
            first[i] = odd ? other : kept;
            second[i] = odd ? kept : other;
        }
    }
}

/*
 * Codes of a thread's slots by stochastic rounding, for float formats. Calls store(u, codes) for each slot; number(u)
 * is the number of its first element. With V = 4, an even lane has an even slot and the next lane the slot after it.
 */
template <class S, class Q, int V, int U, class NumberOf, class ScaleOf, class Store>
__device__ __forceinline__ void encode_random(Words<typename S::Bits, V> (&x)[U], u64 seed, const NumberOf &number,
                                              ScaleOf &&scales, const Store &store) {
    const auto codes = [&](int i, const u32 (&random)[V / 2]) {
        return unless_bad<Q>(encode_stochastic<S, Q>(x[i], scales.of(i), 0, random), scales.of(i));
    };
#pragma unroll 1
    for (u32 u = 0; u < U; u += 2) {
        u32 first[V / 2], second[V / 2];
        draw_two<S, V>(first, second, seed, number(u), number(u + 1));
        store(u, codes(0, first));
        store(u + 1, codes(1, second));
#pragma unroll
        for (int i = 0; i + 2 < U; i++) x[i] = x[i + 2];
        scales.move_on();
        scales.move_on();
    }
}

/*
 * The values of V packed codes before scaling; the bits of a NaN do not matter. An integer is the last
 * bits of a sum with 2^23. A format without NaN is F32 with another bias.
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
