/* scaler.cuh: the arithmetic of loss scaling. */
#ifndef WARPOOL_SCALER_CUH
#define WARPOOL_SCALER_CUH

#include "fuse.cuh"

namespace wp {

/* The formats of gradients. */
template <class T>
constexpr bool GRADIENT = SAME<T, F32> || SAME<T, F16> || SAME<T, BF16>;

/* `x` times `inverse` in F32, rounded to nearest, and then to T; -0.0 keeps the sign of zero. */
template <class T>
WP_HD typename T::Bits unscaled(typename T::Bits x, float inverse) {
    return rounded<T>(multiply_add(widen<T, F32>(x), inverse, -0.0f), Nearest(), false, 0);
}

template <class T>
WP_HD bool is_finite(typename T::Bits x) {
    return (x & (typename T::Bits)~T::SIGN) < T::OVERFLOW;
}

/* The end of a step; see wp_scaler_update. */
WP_HD void update_scaler(wp_scaler &s) {
    s.updates++;
    s.skip = s.found;
    if (s.found != 0) {
        s.scale *= s.backoff;
        s.good_steps = 0;
        s.skipped++;
    } else if (++s.good_steps >= s.interval) {
        const float grown = s.scale * s.growth;
        if ((bits_as<u32>(grown) & 0x7FFFFFFF) <= F32::MAX) s.scale = grown;
        s.good_steps = 0;
    }
    s.found = 0;
    s.inverse = 1.0f / s.scale;
}

}  // namespace wp

#endif /* WARPOOL_SCALER_CUH */
