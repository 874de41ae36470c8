/*
 * shim.h: lets the per-element code of kernels/device compile with the host C++ compiler.
 *
 * WP_HD marks a function that both sides share. Under nvcc it is a host and device function, with
 * the host compiler an ordinary inline one that is always inlined, so that a loop around it is
 * vectorised with the instruction set of the function that holds the loop.
 */
#ifndef WARPOOL_SHIM_H
#define WARPOOL_SHIM_H

#include <string.h>

#include "warpool.h"

#ifdef __CUDACC__
#define WP_HD __host__ __device__ __forceinline__
#else
#define WP_HD inline __attribute__((always_inline))
#endif

namespace wp {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = wp_u32;
using u64 = wp_u64;
using i64 = long long;

/*
 * The bits of one value as another type of the same size. By reference: an array of bytes is copied
 * byte by byte, and nvcc does not always join it again.
 */
template <class To, class From>
WP_HD To bits_as(const From &from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as needs two types of one size");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

}  // namespace wp

#endif /* WARPOOL_SHIM_H */
