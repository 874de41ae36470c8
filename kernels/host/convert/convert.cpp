/*
 * convert.cpp: conversion on the host device.
 *
 * F16C is used where it does a whole conversion, with the NaN replaced; see levels.h for the rest.
 */
#include "device/fuse.cuh"
#include "device/pairs.cuh"
#include "device/philox.cuh"
#include "device/shape.cuh"
#include "host/levels.h"

namespace wp {
namespace {

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
WP_HD void loop(const Run &run, const Mode &how) {
    /*
     * Copies, because stores through `dst` could change the originals, which would prevent
     * vectorisation.
     */
    const Mode mode = how;
    const u64 count = run.count;
    const typename S::Bits *__restrict__ src = (const typename S::Bits *)run.src;
    typename D::Bits *__restrict__ dst = (typename D::Bits *)run.dst;
    const bool saturate = run.saturate;
    if constexpr (Mode::RANDOM) {
        const u64 seed = run.seed, index = run.index;
        for (u64 i = 0; i < count; i++)
            dst[i] = element<S, D>(src[i], mode, saturate, philox_half(seed, index + i));
    } else {
        for (u64 i = 0; i < count; i++) dst[i] = element<S, D>(src[i], mode, saturate);
    }
}

#if defined(__x86_64__)
template <class S, class D, class Mode>
WP_AVX2 void loop_avx2(const Run &run, const Mode &mode) {
    loop<S, D>(run, mode);
}

template <class S, class D, class Mode>
WP_AVX512 void loop_avx512(const Run &run, const Mode &mode) {
    loop<S, D>(run, mode);
}

/* F32 to F16, nearest: F16C keeps NaN payloads, so NaN is replaced afterwards. */
WP_AVX2 void f32_to_f16(const Run &run) {
    const u32 *src = (const u32 *)run.src;
    u16 *dst = (u16 *)run.dst;
    const __m128i nan = _mm_set1_epi16(0x7FFF), infinity = _mm_set1_epi16(0x7C00);
    u64 i = 0;
    for (; i + 8 <= run.count; i += 8) {
        const __m256 x = _mm256_loadu_ps((const float *)src + i);
        __m128i y = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m128i magnitude = _mm_and_si128(y, nan);
        if (run.saturate) {
            const __m128i infinite = _mm_cmpeq_epi16(magnitude, infinity);
            y = _mm_blendv_epi8(y, _mm_sub_epi16(y, _mm_set1_epi16(1)), infinite);
        }
        y = _mm_blendv_epi8(y, nan, _mm_cmpgt_epi16(magnitude, infinity));
        _mm_storeu_si128((__m128i *)(dst + i), y);
    }
    const bool saturate = run.saturate;
    for (; i < run.count; i++) dst[i] = narrow<F32, F16>(src[i], Nearest(), saturate);
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

#if defined(__x86_64__)
template <class S, class D, class Mode>
void convert_run(const Run &run, const Mode &mode);

/* F16 to D in strips, through F32, which F16C computes. */
template <class D, class Mode>
void f16_through_f32(const Run &run, const Mode &mode) {
    constexpr u64 STRIP = 1024;
    u32 wide[STRIP];
    for (u64 start = 0; start < run.count; start += STRIP) {
        const u64 now = start + STRIP < run.count ? STRIP : run.count - start;
        f16_to_f32({(const u16 *)run.src + start, wide, now, 0, 0, false});
        const u64 index = run.index + start;
        convert_run<F32, D>({wide, (typename D::Bits *)run.dst + start, now, index, run.seed, run.saturate}, mode);
    }
}
#endif

template <class S, class D, class Mode>
void convert_run(const Run &run, const Mode &mode) {
#if defined(__x86_64__)
    const Level best = level();
    if constexpr (SAME<S, F32> && SAME<D, F16> && SAME_MODE<Mode, Nearest>) {
        if (best >= AVX2) return f32_to_f16(run);
    } else if constexpr (SAME<S, F16> && SAME<D, F32>) {
        if (best >= AVX2) return f16_to_f32(run);
    } else if constexpr (SAME<S, F16>) {
        if (best >= AVX2) return f16_through_f32<D>(run, mode);
    }
    if (best == AVX512) return loop_avx512<S, D>(run, mode);
    if (best == AVX2) return loop_avx2<S, D>(run, mode);
#endif
    loop<S, D>(run, mode);
}

/* What the fused operation finds in a run. */
struct Found {
    u32 most; /* largest magnitude */
    bool bad;
};

/* Inlined into a function per level: without FMA instructions a fused multiply-add is a library call. */
template <class S, class D, class Mode>
WP_HD void fused_loop(const Run &run, const Mode &how, float scale, float bias, u32 *block_amax, Found &found) {
    const Mode mode = how;
    const typename S::Bits *__restrict__ src = (const typename S::Bits *)run.src;
    typename D::Bits *__restrict__ dst = (typename D::Bits *)run.dst;
    const u64 count = run.count, seed = run.seed, index = run.index;
    const bool saturate = run.saturate;
    for (u64 start = 0; start < count; start += 32) {
        const u64 end = start + 32 < count ? start + 32 : count;
        u32 most = 0, bad = 0;
        for (u64 i = start; i < end; i++) {
            const u32 random = Mode::RANDOM ? philox_half(seed, index + i) : 0;
            const u32 y = multiply_add(widen<S, F32>(src[i]), scale, bias);
            const typename D::Bits result = rounded<D>(y, mode, saturate, random);
            dst[i] = result;
            most = (y & 0x7FFFFFFF) > most ? y & 0x7FFFFFFF : most;
            bad |= (u32)not_finite<D>(y, result);
        }
        if (block_amax != nullptr) block_amax[start / 32] = most;
        found.most = most > found.most ? most : found.most;
        found.bad |= bad != 0;
    }
}

#if defined(__x86_64__)
template <class S, class D, class Mode>
WP_AVX2 void fused_avx2(const Run &run, const Mode &mode, float scale, float bias, u32 *block_amax, Found &found) {
    fused_loop<S, D>(run, mode, scale, bias, block_amax, found);
}
#endif

template <class S, class D, class Mode>
void fused_run(const Run &run, const Mode &mode, float scale, float bias, u32 *block_amax, Found &found) {
#if defined(__x86_64__)
    if (level() >= AVX2) return fused_avx2<S, D>(run, mode, scale, bias, block_amax, found);
#endif
    fused_loop<S, D>(run, mode, scale, bias, block_amax, found);
}

/* One run in the requested mode. */
template <class S, class D, class Each>
void with_mode(u32 rounding, bool exact, const Each &each) {
    if (exact || rounding == WP_NEAREST) return each(Nearest());
    if (rounding == WP_STOCHASTIC) return each(Stochastic());
    each(Directed(rounding));
}

template <class S, class D>
void convert_one(const wp_convert &a, const Run &run, u32 tensor) {
    if constexpr (FUSED_PAIR<S, D>) {
        if (a.fused != 0) {
            const float scale = a.scale_at != 0 ? a.scale * *(const float *)a.scale_at : a.scale;
            Found found = {0, false};
            with_mode<S, D>(a.rounding, false, [&](auto mode) {
                fused_run<S, D>(run, mode, scale, a.bias, (u32 *)a.block_amax, found);
            });
            u32 *amax = (u32 *)a.amax;
            if (amax != nullptr && found.most > amax[tensor]) amax[tensor] = found.most;
            if (a.flag != 0 && found.bad) *(u32 *)a.flag = 1;
            return;
        }
    }
    if constexpr (PAIR<S, D>) {
        with_mode<S, D>(a.rounding, EXACT<S, D>, [&](auto mode) {
            if constexpr (!EXACT<S, D> || SAME_MODE<decltype(mode), Nearest>) convert_run<S, D>(run, mode);
        });
    }
}

template <class S, class D>
void convert_every(const wp_convert &a) {
    const bool saturate = a.overflow == WP_SATURATE;
    for (u64 r = 0; r < a.rows; r++) {
        if (a.tiles != 0) {
            const wp_tile t = ((const wp_tile *)a.tiles)[r];
            convert_one<S, D>(a, {(const void *)t.src, (void *)t.dst, t.count, t.index, a.seed, saturate}, t.tensor);
        } else {
            const void *src = (const void *)(a.src + r * a.src_pitch);
            void *dst = (void *)(a.dst + r * a.dst_pitch);
            convert_one<S, D>(a, {src, dst, a.count, a.first + r * a.count, a.seed, saturate}, 0);
        }
    }
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_convert(const wp_convert *args) {
    using namespace wp;
    const wp_convert &a = *args;
    if (a.rounding > WP_STOCHASTIC || a.overflow > WP_SATURATE) return WP_INVALID;
    if (a.fused != 0 && a.block_amax != 0 && (a.tiles != 0 || a.rows != 1)) return WP_INVALID;
    return with_pair(a.src_type, a.dst_type, WP_INVALID, [&](auto s, auto d) -> int {
        using S = decltype(s);
        using D = decltype(d);
        if constexpr (PAIR<S, D> || FUSED_PAIR<S, D>) {
            if (a.fused != 0 ? !FUSED_PAIR<S, D> : !PAIR<S, D>) return WP_INVALID;
            convert_every<S, D>(a);
            return WP_OK;
        }
        return WP_INVALID;
    });
}

extern "C" wp_u32 wp_convert_tile(wp_u32 src_type, wp_u32 dst_type) {
    using namespace wp;
    return (u32)with_pair(src_type, dst_type, 0, [](auto s, auto d) -> int {
        return PAIR<decltype(s), decltype(d)> ? Shape<decltype(s), decltype(d)>::TILE : 0;
    });
}

extern "C" wp_u32 wp_convert_group(wp_u32 src_type, wp_u32 dst_type) {
    using namespace wp;
    return (u32)with_pair(src_type, dst_type, 0, [](auto s, auto d) -> int {
        return PAIR<decltype(s), decltype(d)> ? Shape<decltype(s), decltype(d)>::V : 0;
    });
}
