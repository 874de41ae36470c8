/* scaler.cuh: the arithmetic of loss scaling. */
#ifndef WARPOOL_SCALER_CUH
#define WARPOOL_SCALER_CUH

#include "fuse.cuh"

namespace wp {

/* The formats of gradients. */
template <class T>
constexpr bool GRADIENT = SAME<T, F32> || SAME<T, F16> || SAME<T, BF16>;

/*
 * `x` times `inverse` in F32, rounded to nearest, then rounded to T; adding -0.0 keeps the sign of
 * zero.
 */
template <class T>
WP_HD typename T::Bits unscaled(typename T::Bits x, float inverse) {
    return rounded<T>(multiply_add(widen<T, F32>(x), inverse, -0.0f), Nearest(), false, 0);
}

template <class T>
WP_HD bool is_finite(typename T::Bits x) {
    return (x & (typename T::Bits)~T::SIGN) < T::OVERFLOW;
}

/* Limits a positive scale, perhaps 0 or infinite, to the range of a scaler. */
WP_HD float bounded_scale(float scale) {
    const float lowest = power_f32(-WP_SCALER_EXPONENT), highest = power_f32(WP_SCALER_EXPONENT);
    return scale < lowest ? lowest : scale > highest ? highest : scale;
}

/*
 * The largest power of two within the bounds whose product with `most` is at most 2^top. If `most` is not
 * finite, the upper bound, by which every value but 0 overflows: a gap between tensors must stay 0.
 */
WP_HD float fitted_scale(float most, int top) {
    const u32 bits = bits_as<u32>(most);
    if (bits == 0) return 1.0f;
    if (bits > F32::MAX) return power_f32(WP_SCALER_EXPONENT);
    /* For a subnormal number, the largest possible exponent. */
    const int exponent = (int)(bits >> F32::MAN) - 127 + ((bits & ((1u << F32::MAN) - 1)) != 0 ? 1 : 0);
    const int power = top - exponent;
    return power_f32(power > WP_SCALER_EXPONENT ? WP_SCALER_EXPONENT : power < -WP_SCALER_EXPONENT ? -WP_SCALER_EXPONENT : power);
}

WP_HD void fit_scaler(wp_scaler &s, float *most, int top) {
    s.scale = fitted_scale(most[0] + most[1], top);
    s.inverse = 1.0f / s.scale;
    s.found = 0;
    most[0] = most[1] = 0.0f;
}

/* Ends a step; see wp_scaler_update. */
WP_HD void update_scaler(wp_scaler &s) {
    const bool grows = s.found == 0 && ++s.good_steps >= s.interval;
    s.updates++;
    s.skip = s.found;
    if (s.found != 0) {
        s.scale = bounded_scale(s.scale * s.backoff);
        s.good_steps = 0;
        s.skipped++;
    } else if (grows) {
        s.scale = bounded_scale(s.scale * s.growth);
        s.good_steps = 0;
    }
    s.found = 0;
    s.inverse = 1.0f / s.scale;
}

/* One launch of wp_scaler_update. */
WP_HD void end_step(const wp_scaler_update &a) {
    wp_scaler &scaler = *(wp_scaler *)a.scaler;
    if (a.most != 0) {
        fit_scaler(scaler, (float *)a.most, a.top);
    } else {
        update_scaler(scaler);
    }
    if (float *largest = (float *)a.largest) {
        largest[1] = largest[0];
        largest[0] = 0.0f;
    }
}

}  // namespace wp

#endif /* WARPOOL_SCALER_CUH */
