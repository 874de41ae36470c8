/*
 * narrow.cuh: two values to 4 or 6 bits by one instruction.
 *
 * Only code for one family of Blackwell GPUs, or for one GPU, has such an instruction; a build contains that code
 * if it is requested (CUDA_COMPUTE_CAP=100f). It has not run on such a GPU yet.
 */
#ifndef WARPOOL_NARROW_CUH
#define WARPOOL_NARROW_CUH

#include "quant.cuh"

namespace wp {

#if __CUDA_ARCH_FAMILY_SPECIFIC__ >= 1000 || __CUDA_ARCH_SPECIFIC__ >= 1000
constexpr bool NARROW_CVT = true;

/* Two numbers to nearest, the first in the lower half: of a byte with 4 bits each, of two bytes with 6. */
template <class Q>
__device__ __forceinline__ u32 two_narrow(float first, float second) {
    u16 both;
    if constexpr (SAME<Q, E2M1>) {
        asm("{ .reg .b8 two; cvt.rn.satfinite.e2m1x2.f32 two, %2, %1; mov.b16 %0, {two, 0}; }"
            : "=h"(both) : "f"(first), "f"(second));
    } else if constexpr (SAME<Q, E2M3>) {
        asm("cvt.rn.satfinite.e2m3x2.f32 %0, %2, %1;" : "=h"(both) : "f"(first), "f"(second));
    } else {
        asm("cvt.rn.satfinite.e3m2x2.f32 %0, %2, %1;" : "=h"(both) : "f"(first), "f"(second));
    }
    return both;
}
#else
constexpr bool NARROW_CVT = false;

template <class Q>
__device__ __forceinline__ u32 two_narrow(float, float) {
    return 0;
}
#endif

}  // namespace wp

#endif /* WARPOOL_NARROW_CUH */
