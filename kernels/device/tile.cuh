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

/* What no whole group covers: a few elements at either end, one a lane. */
struct Edges {
    int before, after, end; /* elements before the whole groups, after them, and where these end */

    __device__ __forceinline__ Edges(const Chunk &c, const Whole &w, int v) {
        const bool none = w.end <= w.begin;
        before = (none ? c.high : w.begin * v) - c.low;
        after = none ? 0 : c.high - w.end * v;
        end = w.end * v;
    }
    __device__ __forceinline__ int element(const Chunk &c, int i) const {
        return i < before ? c.low + i : end + (i - before);
    }
};

template <class S, class D, bool Shifted, class Op>
__device__ __forceinline__ void convert_whole_and_edges(const Chunk &c, int lane, Op &op) {
    const Whole w = whole_groups<S, Shape<S, D>::V, Shifted>(c);
    const Edges edges(c, w, Shape<S, D>::V);
    const typename S::Bits *src = (const typename S::Bits *)c.src;
    typename D::Bits *dst = (typename D::Bits *)c.dst;
    /* The lane's first is loaded before the groups, so that its latency is theirs. */
    typename S::Bits first = 0;
    if (lane < edges.before + edges.after) first = src[edges.element(c, lane)];
    convert_groups<S, D, Shifted>(c, w, lane, op);
#pragma unroll 1
    for (int i = lane; i < edges.before + edges.after; i += Shape<S, D>::LANES) {
        const i64 e = edges.element(c, i);
        dst[e] = op.one(i == lane ? first : src[e], c.index + e);
    }
}

template <class S, class D, class Op>
__device__ __forceinline__ void convert_chunk(const Chunk &c, int lane, Op &op) {
    if (c.src % (Shape<S, D>::V * S::SIZE / 8) == 0) {
        convert_whole_and_edges<S, D, false>(c, lane, op);
    } else {
        convert_whole_and_edges<S, D, true>(c, lane, op);
    }
}

}  // namespace wp

#endif /* WARPOOL_TILE_CUH */
