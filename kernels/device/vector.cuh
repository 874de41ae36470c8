/*
 * vector.cuh: vectors of elements, loaded and stored in one instruction whatever the alignment of
 * the source.
 *
 * A source that is not aligned to its vector is read as the two aligned vectors that hold it, the
 * second of which the neighbouring thread loads too (so it comes from L1), and shifted into place.
 */
#ifndef WARPOOL_VECTOR_CUH
#define WARPOOL_VECTOR_CUH

#include "host/shim.h"

namespace wp {

template <int Bytes>
struct Raw;
template <>
struct Raw<2> { using Type = u16; };
template <>
struct Raw<4> { using Type = u32; };
template <>
struct Raw<8> { using Type = uint2; };
template <>
struct Raw<16> { using Type = uint4; };

/* N elements of T, in registers. */
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
    T v[N];
};

/* Read once: kept out of the way of data that is read again. Vectors above 16 bytes go in parts. */
template <class T, int N>
__device__ __forceinline__ Vector<T, N> load_streaming(u64 address) {
    if constexpr (sizeof(T) * N > 16) {
        struct Halves {
            Vector<T, N / 2> low, high;
        };
        return bits_as<Vector<T, N>>(
            Halves{load_streaming<T, N / 2>(address), load_streaming<T, N / 2>(address + sizeof(T) * N / 2)});
    } else {
        using R = typename Raw<sizeof(T) * N>::Type;
        return bits_as<Vector<T, N>>(__ldcs((const R *)address));
    }
}

template <class T, int N>
__device__ __forceinline__ void store_streaming(u64 address, const Vector<T, N> &x) {
    if constexpr (sizeof(T) * N > 16) {
        struct Halves {
            Vector<T, N / 2> low, high;
        };
        const Halves halves = bits_as<Halves>(x);
        store_streaming(address, halves.low);
        store_streaming(address + sizeof(T) * N / 2, halves.high);
    } else {
        using R = typename Raw<sizeof(T) * N>::Type;
        __stcs((R *)address, bits_as<R>(x));
    }
}

/*
 * The vector at `address`, which is a multiple of the element but not of the vector. Both aligned
 * vectors around it must be readable.
 */
template <class T, int N>
__device__ __forceinline__ Vector<T, N> load_shifted(u64 address) {
    constexpr unsigned BYTES = sizeof(T) * N;
    constexpr int WORDS = BYTES / 4;
    using R = typename Raw<BYTES>::Type;
    struct Window {
        R low, high;
    };
    const unsigned off = (unsigned)address & (BYTES - 1);
    const R *base = (const R *)(address - off);
    struct Words {
        u32 w[2 * WORDS];
    };
    Words x = bits_as<Words>(Window{__ldca(base), __ldca(base + 1)});
    if constexpr (WORDS == 4) {
#pragma unroll
        for (int i = 0; i < 6; i++) x.w[i] = off & 8 ? x.w[i + 2] : x.w[i];
    }
    if constexpr (WORDS >= 2) {
#pragma unroll
        for (int i = 0; i <= WORDS; i++) x.w[i] = off & 4 ? x.w[i + 1] : x.w[i];
    }
    struct Out {
        u32 w[WORDS];
    } out;
#pragma unroll
    for (int i = 0; i < WORDS; i++)
        out.w[i] = sizeof(T) >= 4 ? x.w[i] : __funnelshift_r(x.w[i], x.w[i + 1], 8 * (off & 3));
    return bits_as<Vector<T, N>>(out);
}

/* Reads first: many stores to one word queue up behind each other, some 10 ns each (measured). */
__device__ __forceinline__ void set_flag(u32 *flag) {
    volatile u32 *place = flag;
    if (*place == 0) *place = 1;
}

}  // namespace wp

#endif /* WARPOOL_VECTOR_CUH */
