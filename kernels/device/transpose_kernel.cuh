/*
 * transpose_kernel.cuh: conversion into rows and columns at once, one tile per block.
 *
 * A tile has as many rows and columns as make 128 bytes of results, so that both sides are stored in
 * whole lines. Its results are in shared memory in rows of 32 words. A thread takes a column of words
 * over a run of rows and transposes it: 4 x 16 results of 8 bits or 2 x 8 of 16 become 4 or 2 stores
 * of 16 bytes.
 *
 * The 32 lanes of a warp take 4 adjacent words of 8 runs. Word w of row r is at w ^ 4 (r / RUN), so
 * that these are always in all 32 banks, and so is a row that is written.
 */
#ifndef WARPOOL_TRANSPOSE_KERNEL_CUH
#define WARPOOL_TRANSPOSE_KERNEL_CUH

#include "quant_kernel.cuh"

namespace wp {

template <class D>
struct Turned {
    static constexpr int PER_WORD = 32 / D::SIZE; /* results per word, and columns per thread */
    static constexpr int RUN = 128 / D::SIZE;     /* rows per thread: 16 bytes of results */
    static constexpr int SIDE = 8 * RUN;          /* rows and columns of a tile */
};

constexpr int TILE_WORDS = 32; /* per row */

template <class D>
__device__ __forceinline__ u32 word_place(u32 row, u32 word) {
    return row * TILE_WORDS + (word ^ row / Turned<D>::RUN * 4);
}

struct Sides {
    bool src, plain, transposed; /* whether every row of it is aligned to a thread's accesses */
};

/* Stores V results of a row to `plain` and into the tile. */
template <class D, int V>
__device__ __forceinline__ void place_results(const wp_transpose &a, bool aligned, u64 row, u64 col, u32 *tile, u32 at,
                                              const Vector<typename D::Bits, V> &y) {
    static_assert(V % Turned<D>::PER_WORD == 0 && V <= 4 * Turned<D>::PER_WORD, "a thread's words lie side by side");
    /* As one number, because nvcc stores results of 8 bits one by one otherwise. */
    using R = typename Raw<sizeof(y)>::Type;
    *(R *)(tile + at) = bits_as<R>(y);
    if (a.plain == 0 || row >= a.rows || col >= a.cols) return;
    const u64 to = a.plain + row * a.plain_pitch + col * (D::SIZE / 8);
    if (aligned && col + V <= a.cols) {
        store_streaming(to, y);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++)
            if (col + i < a.cols) ((typename D::Bits *)to)[i] = y.v[i];
    }
}

/* Column i of the thread's words, first row first. */
template <class D>
__device__ __forceinline__ Vector<typename D::Bits, Turned<D>::RUN> turned(const u32 (&words)[Turned<D>::RUN], int i) {
    u32 out[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if constexpr (D::SIZE == 16) {
            out[k] = __byte_perm(words[2 * k], words[2 * k + 1], i == 0 ? 0x5410 : 0x7632);
        } else {
            const u32 pick = (u32)i | (u32)(i + 4) << 4;
            const u32 low = __byte_perm(words[4 * k], words[4 * k + 1], pick);
            const u32 high = __byte_perm(words[4 * k + 2], words[4 * k + 3], pick);
            out[k] = __byte_perm(low, high, 0x5410);
        }
    }
    return bits_as<Vector<typename D::Bits, Turned<D>::RUN>>(out);
}

template <class D>
__device__ __forceinline__ void store_turned(const wp_transpose &a, bool aligned, u64 row, u64 col, const u32 *tile) {
    constexpr int RUN = Turned<D>::RUN, PER_WORD = Turned<D>::PER_WORD;
    const u32 run = threadIdx.x % 8, word = threadIdx.x / 8;
    u32 words[RUN];
#pragma unroll
    for (int i = 0; i < RUN; i++) words[i] = tile[word_place<D>(run * RUN + i, word)];
    const u64 first = row + run * RUN;
#pragma unroll
    for (int i = 0; i < PER_WORD; i++) {
        const u64 c = col + word * PER_WORD + i;
        if (c >= a.cols || first >= a.rows) continue;
        const u64 to = a.transposed + c * a.transposed_pitch + first * (D::SIZE / 8);
        const Vector<typename D::Bits, RUN> y = turned<D>(words, i);
        if (aligned && first + RUN <= a.rows) {
            store_streaming(to, y);
        } else {
#pragma unroll
            for (int k = 0; k < RUN; k++)
                if (first + k < a.rows) ((typename D::Bits *)to)[k] = y.v[k];
        }
    }
}

/*
 * All loads of a round are started before any is used. They are words: extracting 16-bit values in the branch that
 * loads them would wait for them there.
 */
template <class S, class D>
__global__ void __launch_bounds__(QUANT_THREADS, 3)
    transpose_kernel(const wp_transpose a, u32 across, const Sides sides, const Chosen<F32, D, false> how) {
    begin_in_order();
    constexpr int V = SLOT<S>, SIDE = Turned<D>::SIDE, LANES = SIDE / V, ROWS = QUANT_THREADS / LANES;
    constexpr int ROUNDS = SIDE / ROWS, U = ROUNDS < 4 ? ROUNDS : 4;
    __shared__ alignas(16) u32 tile[SIDE * TILE_WORDS];
    const u64 row = blockIdx.x / across * (u64)SIDE, col = blockIdx.x % across * (u64)SIDE;
    const u32 own = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const float inverse = a.scale != 0 ? scale_given(*(const float *)a.scale).inverse : 1.0f;
    const u64 c = col + lane * V;
    wp_quantize from = {}; /* in the form that load_slots takes */
    from.values = a.src;
    from.values_pitch = a.src_pitch;
    from.rows = a.rows;
    from.cols = a.cols;
    const Alignment aligned = {sides.src, false, sides.src && a.cols % V == 0};
    u32 most = 0;
#pragma unroll 1
    for (int k = 0; k < ROUNDS; k += U) {
        const auto row_of = [&](int u) { return own + (k + u) * ROWS; };
        Words<typename S::Bits, V> words[U];
        load_slots<S>(words, from, aligned, [&](int u) { return Place{row + row_of(u), c / V}; });
        const auto slot = [&](auto nearest, int u, const Words<typename S::Bits, V> &now) {
            const Vector<typename S::Bits, V> x = bits_as<Vector<typename S::Bits, V>>(now);
            const u32 r = row_of(u);
            most = max(most, largest_of<S, V>(x));
            u32 wide[V];
#pragma unroll
            for (int i = 0; i < V; i++) wide[i] = __float_as_uint(to_float<S>(x.v[i]) * inverse);
            Vector<typename D::Bits, V> y;
            if constexpr (decltype(nearest)::VALUE) {
                convert_all<F32, D>(wide, y.v, Nearest(), how.saturate, 0, 0);
            } else {
                how.group(wide, y.v, (row + r) * a.cols + c);
            }
            place_results<D, V>(a, sides.plain, row + r, c, tile, word_place<D>(r, lane * V / Turned<D>::PER_WORD), y);
        };
        constexpr bool LONG = WORKED_OUT<D> && D::SIZE == 8; /* see ops.cuh */
        if (how.rounding == WP_NEAREST) {
            in_turn<LONG>(words, [&](int u, const auto &now) { slot(Known<true>(), u, now); });
        } else {
            in_turn<true>(words, [&](int u, const auto &now) { slot(Known<false>(), u, now); });
        }
    }
    __syncthreads();
    store_turned<D>(a, sides.transposed, row, col, tile);
    raise_amax(a.amax, most);
}

}  // namespace wp

#endif /* WARPOOL_TRANSPOSE_KERNEL_CUH */
