/*
 * convert.cpp: conversion on the host device.
 *
 * The element code of kernels/device is compiled for the baseline and again for AVX2 and AVX-512;
 * the widest that the processor has is taken. All give the same bits. Where F16C does a whole
 * conversion it is used, with the NaN replaced.
 */
#include "device/element.cuh"
#include "device/philox.cuh"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace wp {
namespace {

enum Level { BASELINE = 0, AVX2 = 1, AVX512 = 2 };

#if defined(__x86_64__)
/* The widest level that both the processor and the operating system support. */
Level detect() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return BASELINE;
    const bool wide_state = (c & bit_OSXSAVE) && (c & bit_AVX) && (c & bit_F16C) && (c & bit_FMA);
    if (!wide_state) return BASELINE;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return BASELINE;
    const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return (low & 0xE6) == 0xE6 && (b & wanted) == wanted ? AVX512 : AVX2;
}
#else
Level detect() { return BASELINE; }
#endif

Level level() {
    static int known = -1; /* written with one value only, so a race is harmless */
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now < 0) {
        now = detect();
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return (Level)now;
}

struct Run {
    const void *src;
    void *dst;
    u64 count;
    u64 index; /* number of the first element */
    u64 seed;
    bool saturate;
};

/* The loop itself; inlined into a function per level. */
template <class S, class D, class Mode>
inline __attribute__((always_inline)) void loop(const Run &run, const Mode &mode) {
    const typename S::Bits *__restrict__ src = (const typename S::Bits *)run.src;
    typename D::Bits *__restrict__ dst = (typename D::Bits *)run.dst;
    const bool saturate = run.saturate;
    if constexpr (Mode::RANDOM) {
        const u64 seed = run.seed, index = run.index;
        for (u64 i = 0; i < run.count; i++)
            dst[i] = element<S, D>(src[i], mode, saturate, philox_word(seed, index + i));
    } else {
        for (u64 i = 0; i < run.count; i++) dst[i] = element<S, D>(src[i], mode, saturate);
    }
}

#if defined(__x86_64__)
#define WP_AVX2 __attribute__((target("avx2,f16c,fma")))
#define WP_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma,prefer-vector-width=512")))

template <class S, class D, class Mode>
WP_AVX2 void loop_avx2(const Run &run, const Mode &mode) {
    loop<S, D>(run, mode);
}

template <class S, class D, class Mode>
WP_AVX512 void loop_avx512(const Run &run, const Mode &mode) {
    loop<S, D>(run, mode);
}

/* F32 to F16, nearest: F16C keeps NaN payloads, so NaN is put in after. */
WP_AVX2 void f32_to_f16(const Run &run) {
    const u32 *src = (const u32 *)run.src;
    u16 *dst = (u16 *)run.dst;
    const __m128i nan = _mm_set1_epi16(0x7FFF);
    u64 i = 0;
    for (; i + 8 <= run.count; i += 8) {
        const __m256 x = _mm256_loadu_ps((const float *)src + i);
        __m128i y = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m128i magnitude = _mm_and_si128(y, nan);
        if (run.saturate) {
            const __m128i infinite = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7C00));
            y = _mm_blendv_epi8(y, _mm_sub_epi16(y, _mm_set1_epi16(1)), infinite);
        }
        const __m128i is_nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7C00));
        _mm_storeu_si128((__m128i *)(dst + i), _mm_blendv_epi8(y, nan, is_nan));
    }
    for (; i < run.count; i++) dst[i] = narrow<F32, F16>(src[i], Nearest(), run.saturate);
}

WP_AVX2 void f16_to_f32(const Run &run) {
    const u16 *src = (const u16 *)run.src;
    u32 *dst = (u32 *)run.dst;
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    u64 i = 0;
    for (; i + 8 <= run.count; i += 8) {
        const __m256 y = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i)));
        const __m256 is_nan = _mm256_cmp_ps(y, y, _CMP_UNORD_Q);
        _mm256_storeu_ps((float *)dst + i, _mm256_blendv_ps(y, nan, is_nan));
    }
    for (; i < run.count; i++) dst[i] = widen<F16, F32>(src[i]);
}
#endif

template <class S, class D, class Mode>
void dispatch(const Run &run, const Mode &mode) {
#if defined(__x86_64__)
    const Level best = level();
    if constexpr (SAME<S, F32> && SAME<D, F16> && SAME_MODE<Mode, Nearest>) {
        if (best >= AVX2) return f32_to_f16(run);
    } else if constexpr (SAME<S, F16> && SAME<D, F32>) {
        if (best >= AVX2) return f16_to_f32(run);
    }
    if (best == AVX512) return loop_avx512<S, D>(run, mode);
    if (best == AVX2) return loop_avx2<S, D>(run, mode);
#endif
    loop<S, D>(run, mode);
}

template <class S, class D>
void rows(const wp_convert &a) {
    Run run = {nullptr, nullptr, a.count, 0, a.seed, a.overflow == WP_SATURATE};
    for (u64 r = 0; r < a.rows; r++) {
        run.src = (const void *)(a.src + r * a.src_pitch);
        run.dst = (void *)(a.dst + r * a.dst_pitch);
        run.index = r * a.count;
        if (EXACT<S, D> || a.rounding == WP_NEAREST) {
            dispatch<S, D>(run, Nearest());
        } else if (a.rounding == WP_STOCHASTIC) {
            dispatch<S, D>(run, Stochastic());
        } else {
            dispatch<S, D>(run, Directed(a.rounding));
        }
    }
}

template <class S, class D>
int pair(const wp_convert &a) {
    if constexpr (PAIR<S, D>) {
        rows<S, D>(a);
        return WP_OK;
    }
    return WP_INVALID;
}

template <class S>
int from(const wp_convert &a) {
    switch (a.dst_type) {
        case WP_F32: return pair<S, F32>(a);
        case WP_F16: return pair<S, F16>(a);
        case WP_BF16: return pair<S, BF16>(a);
        case WP_E4M3: return pair<S, E4M3>(a);
        case WP_E5M2: return pair<S, E5M2>(a);
        case WP_F64: return pair<S, F64>(a);
        default: return WP_INVALID;
    }
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_convert(const wp_convert *args) {
    using namespace wp;
    if (args->rounding > WP_STOCHASTIC || args->overflow > WP_SATURATE) return WP_INVALID;
    switch (args->src_type) {
        case WP_F32: return from<F32>(*args);
        case WP_F16: return from<F16>(*args);
        case WP_BF16: return from<BF16>(*args);
        case WP_E4M3: return from<E4M3>(*args);
        case WP_E5M2: return from<E5M2>(*args);
        case WP_F64: return from<F64>(*args);
        default: return WP_INVALID;
    }
}
