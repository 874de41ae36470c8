/* element.cuh: one element from any format to any other the crate converts. */
#ifndef WARPOOL_ELEMENT_CUH
#define WARPOOL_ELEMENT_CUH

#include "round.cuh"
#include "widen.cuh"

namespace wp {

template <class T>
constexpr bool FP8 = SAME<T, E4M3> || SAME<T, E5M2>;

/* The pairs that are converted. Rounding matters for the ones that are not EXACT. */
template <class S, class D>
constexpr bool PAIR =
    (SAME<S, F32> && !SAME<D, F32>) || (SAME<D, F32> && !SAME<S, F32>) ||
    (SAME<S, F64> && (SAME<D, F16> || SAME<D, BF16>)) ||
    (SAME<S, F16> && (SAME<D, BF16> || FP8<D>)) ||
    (SAME<S, BF16> && (SAME<D, F16> || FP8<D>)) || (FP8<S> && (SAME<D, F16> || SAME<D, BF16>)) ||
    (FP8<S> && FP8<D> && !SAME<S, D>);

/* Converts `x`, bits of S, to bits of D; rounds once, by `mode`. */
template <class S, class D, class Mode>
WP_HD typename D::Bits element(typename S::Bits x, const Mode &mode, bool saturate, u32 random = 0) {
    if constexpr (EXACT<S, D>) {
        return widen<S, D>(x);
    } else if constexpr (SAME<S, F32> || SAME<S, F64>) {
        return narrow<S, D>(x, mode, saturate, random);
    } else {
        return narrow<F32, D>(widen<S, F32>(x), mode, saturate, random);
    }
}

}  // namespace wp

#endif /* WARPOOL_ELEMENT_CUH */
