/*
 * philox.cuh: the counter-based generator for stochastic rounding.
 *
 * Philox4x32 with 7 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
 * 3", SC 2011, where 7 rounds pass BigCrush). Key: the seed. Counter: the number of the element
 * divided by 8, which yields 16 bits for each of 8 adjacent elements. Element i takes word (i % 8)
 * / 2 of the four, the lower half if i is even. So an element's random bits depend only on its
 * number and the seed, never on the grid.
 */
#ifndef WARPOOL_PHILOX_CUH
#define WARPOOL_PHILOX_CUH

#include "host/shim.h"

namespace wp {

struct Words4 {
    u32 v[4];
};

/* One instruction; for the product of two u64, nvcc adds a zero to the upper half. */
WP_HD u64 wide_product(u32 a, u32 b) {
#ifdef __CUDA_ARCH__
    u64 product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return (u64)a * b;
#endif
}

WP_HD Words4 philox(u64 seed, u64 counter) {
    u32 x0 = (u32)counter, x1 = (u32)(counter >> 32), x2 = 0, x3 = 0;
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int round = 0; round < 7; round++) {
        const u64 p0 = wide_product(x0, 0xD2511F53u);
        const u64 p1 = wide_product(x2, 0xCD9E8D57u);
        x0 = (u32)(p1 >> 32) ^ x1 ^ k0;
        x1 = (u32)p1;
        x2 = (u32)(p0 >> 32) ^ x3 ^ k1;
        x3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{x0, x1, x2, x3}};
}

/* The 16 bits of element `index`. */
WP_HD u32 philox_half(u64 seed, u64 index) {
    /* Selected, because an index would put the words into local memory. */
    const Words4 w = philox(seed, index / 8);
    const u32 low = index & 2 ? w.v[1] : w.v[0], high = index & 2 ? w.v[3] : w.v[2];
    const u32 word = index & 4 ? high : low;
    return index & 1 ? word >> 16 : word & 0xFFFF;
}

}  // namespace wp

#endif /* WARPOOL_PHILOX_CUH */
