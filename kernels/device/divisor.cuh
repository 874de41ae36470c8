/* divisor.cuh: division by a number that the host knows. */
#ifndef WARPOOL_DIVISOR_CUH
#define WARPOOL_DIVISOR_CUH

#include "host/shim.h"

namespace wp {

/* n / d for n below 2^31 and d above 1, by one multiplication (Granlund, Montgomery: 1994). */
struct Divisor {
    u32 d, multiplier, shift;

    /* A divisor by which every quotient is 0. */
    Divisor() : d(1), multiplier(0), shift(0) {}
    explicit Divisor(u32 d) : d(d), shift(0) {
        while ((2ull << shift) < d) shift++;
        multiplier = (u32)(((1ull << (32 + shift)) + d - 1) / d);
    }
    WP_HD u32 quotient(u32 n) const {
#ifdef __CUDA_ARCH__
        return __umulhi(n, multiplier) >> shift;
#else
        return (u32)((u64)n * multiplier >> 32) >> shift;
#endif
    }
};

}  // namespace wp

#endif /* WARPOOL_DIVISOR_CUH */
