/*
 * feedback.cpp: gradients to codes, including the rounding errors of earlier codes, on the host
 * device.
 */
#include "device/feedback.cuh"
#include "device/pairs.cuh"
#include "device/philox.cuh"
#include "host/levels.h"

namespace wp {
namespace {

template <class D, class Mode>
WP_HD void feedback_run(const wp_feedback &a, const Mode &mode) {
    const u32 *__restrict__ src = (const u32 *)a.src;
    u32 *__restrict__ residual = (u32 *)a.residual;
    typename D::Bits *__restrict__ dst = (typename D::Bits *)a.dst;
    const float scale = *(const float *)a.scale, inverse = *(const float *)a.inverse;
    const u64 count = a.count, seed = a.seed, first = a.first;
    for (u64 i = 0; i < count; i++)
        dst[i] = fed_back<D>(src[i], residual[i], scale, inverse, mode, Mode::RANDOM ? philox_half(seed, first + i) : 0);
}

#if defined(__x86_64__)
template <class D, class Mode>
WP_AVX2 void feedback_avx2(const wp_feedback &a, const Mode &mode) {
    feedback_run<D>(a, mode);
}
#endif

template <class D, class Mode>
void feedback(const wp_feedback &a, const Mode &mode) {
#if defined(__x86_64__)
    if (level() >= AVX2) return feedback_avx2<D>(a, mode);
#endif
    feedback_run<D>(a, mode);
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_feedback(const wp_feedback *args) {
    using namespace wp;
    if ((args->src | args->residual | args->dst) % 16 != 0) return WP_INVALID;
    if (args->rounding != WP_NEAREST && args->rounding != WP_STOCHASTIC) return WP_INVALID;
    return with_destination<F32>(args->type, WP_INVALID, [&](auto, auto d) -> int {
        using D = decltype(d);
        if constexpr (NARROW<D>) {
            if (args->rounding == WP_STOCHASTIC)
                feedback<D>(*args, Stochastic());
            else
                feedback<D>(*args, Nearest());
            return WP_OK;
        }
        return WP_INVALID;
    });
}
