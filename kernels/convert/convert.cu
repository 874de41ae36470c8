/* convert.cu: precision conversion: the plain operations, and the entry point. */
#include "device/convert_kernel.cuh"
#include "device/ops.cuh"
#include "device/pairs.cuh"

namespace wp {

/* convert_fused.cu */
int queue_fused(const wp_convert &a, void *stream);

namespace {

/* One aligned run by the mode's own kernel, anything else by `other`. */
template <class S, class D, class Mode, class Other>
int queue_plain(const wp_convert &a, const Mode &mode, const Other &other, void *stream) {
    using Op = Plain<S, D, Mode>;
    if (is_flat<S, D, Op>(a)) return queue_flat<S, D>(a, Op{mode, a.overflow == WP_SATURATE, a.seed}, stream);
    if (a.rows != 1 && are_whole_rows<S, D>(a)) return queue_rows<S, D>(a, other, stream);
    return queue_convert<S, D>(a, other, stream);
}

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_convert(const wp_convert *args, void *stream) {
    using namespace wp;
    const wp_convert &a = *args;
    if (a.rounding > WP_STOCHASTIC || a.overflow > WP_SATURATE) return cudaErrorInvalidValue;
    if (!are_formats(a.src_type, a.dst_type)) return cudaErrorInvalidValue;
    if (a.rows == 0 || (a.count == 0 && a.tiles == 0)) return 0;
    if (a.fused != 0) return queue_fused(a, stream);
    return with_pair(a.src_type, a.dst_type, cudaErrorInvalidValue, [&](auto s, auto d) -> int {
        using S = decltype(s);
        using D = decltype(d);
        if constexpr (PAIR<S, D>) {
            const bool saturate = a.overflow == WP_SATURATE;
            if (EXACT<S, D> || a.rounding == WP_NEAREST)
                return queue_plain<S, D>(a, Nearest(), Plain<S, D, Nearest>{Nearest(), saturate, a.seed}, stream);
            if constexpr (!EXACT<S, D>) {
                const Chosen<S, D, false> chosen = {a.rounding, saturate, a.seed};
                if (a.rounding == WP_STOCHASTIC) return queue_plain<S, D>(a, Stochastic(), chosen, stream);
                return queue_plain<S, D>(a, Directed(a.rounding), chosen, stream);
            }
        }
        return cudaErrorInvalidValue;
    });
}
