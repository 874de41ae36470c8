/* scale.cpp: loss scaling on the host device. */
#include "device/pairs.cuh"
#include "device/scaler.cuh"
#include "host/levels.h"

namespace wp {
namespace {

/* True if every element was finite. */
template <class T>
WP_HD bool unscale_run(typename T::Bits *x, u64 count, float inverse) {
    u32 bad = 0;
    for (u64 i = 0; i < count; i++) {
        bad |= !is_finite<T>(x[i]);
        x[i] = unscaled<T>(x[i], inverse);
    }
    return bad == 0;
}

#if defined(__x86_64__)
template <class T>
WP_AVX2 bool unscale_avx2(typename T::Bits *x, u64 count, float inverse) {
    return unscale_run<T>(x, count, inverse);
}
#endif

template <class T>
void unscale_tiles(const wp_unscale &a) {
    wp_scaler *scaler = (wp_scaler *)a.scaler;
    for (u64 i = 0; i < a.count; i++) {
        const wp_tile tile = ((const wp_tile *)a.tiles)[i];
        typename T::Bits *x = (typename T::Bits *)tile.src;
        bool finite;
#if defined(__x86_64__)
        if (level() >= AVX2) {
            finite = unscale_avx2<T>(x, tile.count, scaler->inverse);
        } else
#endif
            finite = unscale_run<T>(x, tile.count, scaler->inverse);
        if (!finite) scaler->found = 1;
    }
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_unscale(const wp_unscale *args) {
    using namespace wp;
    return with_destination<F32>(args->type, WP_INVALID, [&](auto, auto t) -> int {
        using T = decltype(t);
        if constexpr (GRADIENT<T>) {
            unscale_tiles<T>(*args);
            return WP_OK;
        }
        return WP_INVALID;
    });
}

extern "C" int wp_host_scaler_update(const wp_scaler_update *args) {
    wp::end_step(*args);
    return WP_OK;
}
