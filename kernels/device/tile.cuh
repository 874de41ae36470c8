/*
 * tile.cuh: how a warp converts its share of a row, a chunk.
 *
 * The lanes own groups of V elements, cut so that each group's destination is aligned. A group that
 * the chunk does not fill, or whose source window sticks out of the row, is done element by element,
 * one a lane: only the first and last of a chunk can be.
 */
#ifndef WARPOOL_TILE_CUH
#define WARPOOL_TILE_CUH

#include "shape.cuh"
#include "vector.cuh"

namespace wp {

/* One contiguous run of elements. */
struct Row {
    u64 src;
    u64 dst;
    u64 count;
    u64 index; /* number of the first element */
};

/* Elements [low, high), of those that may be read [low_read, high_read), counted from `src`. */
struct Chunk {
    u64 src; /* where the first group starts, perhaps before the row */
    u64 dst; /* a multiple of the group */
    u64 index;
    int low, high, low_read, high_read;
};

/* Chunk `c` of `row`, chunks being `size` elements. */
template <class S, class D>
__device__ __forceinline__ Chunk chunk_of(const Row &row, u64 c, int size) {
    const int phase = (int)phase_of<S, D>(row.dst);
    const i64 first = (i64)(c * size) - phase;
    const i64 left = (i64)row.count - first; /* of the row */
    const int low = first < 0 ? phase : 0;
    constexpr int V = Shape<S, D>::V;
    return {row.src + first * (S::SIZE / 8), row.dst + first * (D::SIZE / 8), row.index + first, low,
            left < size ? (int)left : size, first < 0 ? phase : (first < V ? -(int)first : -V),
            left < size + V ? (int)left : size + V};
}

/* The groups [begin, end) that are whole. */
struct Whole {
    int begin, end;
};

template <class S, int V, bool Shifted>
__device__ __forceinline__ Whole whole_groups(const Chunk &c) {
    Whole w = {(c.low + V - 1) / V, c.high / V};
    if (Shifted) {
        constexpr int SB = S::SIZE / 8, BYTES = V * SB;
        const int off = (int)(c.src % BYTES);
        if (w.begin * BYTES - off < c.low_read * SB) w.begin++;
        if ((w.end + 1) * BYTES - off > c.high_read * SB) w.end--;
    }
    return w;
}

template <class S, class D, bool Shifted, class Op>
__device__ __forceinline__ void convert_groups(const Chunk &c, const Whole &w, int lane, Op &op) {
    constexpr int V = Shape<S, D>::V, U = Shape<S, D>::UNROLL, LANES = Shape<S, D>::LANES;
    using SV = Vector<typename S::Bits, V>;
    using DV = Vector<typename D::Bits, V>;
#pragma unroll 1
    for (int g = w.begin + lane; g < w.end; g += LANES * U) {
        const u64 from = c.src + (i64)g * (i64)sizeof(SV), to = c.dst + (i64)g * (i64)sizeof(DV);
        SV x[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const u64 at = from + u * LANES * sizeof(SV);
            if (g + LANES * u < w.end)
                x[u] = Shifted ? load_shifted<typename S::Bits, V>(at) : load_streaming<typename S::Bits, V>(at);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (g + LANES * u < w.end) {
                DV y;
                op.group(x[u].v, y.v, c.index + (i64)(g + LANES * u) * V);
                store_streaming(to + u * LANES * sizeof(DV), y);
            }
        }
    }
}

/* What no whole group covers: a few elements at either end. */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_edges(const Chunk &c, const Whole &w, int lane, Op &op) {
    constexpr int V = Shape<S, D>::V, LANES = Shape<S, D>::LANES;
    const bool none = w.end <= w.begin;
    const int before = (none ? c.high : w.begin * V) - c.low, after = none ? 0 : c.high - w.end * V;
#pragma unroll 1
    for (int i = lane; i < before + after; i += LANES) {
        const i64 e = i < before ? c.low + i : w.end * V + (i - before);
        ((typename D::Bits *)c.dst)[e] = op.one(((const typename S::Bits *)c.src)[e], c.index + e);
    }
}

template <class S, class D, class Op>
__device__ __forceinline__ void convert_chunk(const Chunk &c, int lane, Op &op) {
    constexpr int V = Shape<S, D>::V;
    if (c.src % (V * S::SIZE / 8) == 0) {
        const Whole w = whole_groups<S, V, false>(c);
        convert_groups<S, D, false>(c, w, lane, op);
        convert_edges<S, D>(c, w, lane, op);
    } else {
        const Whole w = whole_groups<S, V, true>(c);
        convert_groups<S, D, true>(c, w, lane, op);
        convert_edges<S, D>(c, w, lane, op);
    }
}

}  // namespace wp

#endif /* WARPOOL_TILE_CUH */
