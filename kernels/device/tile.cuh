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

/* Chunk `c` of `row`, chunks being `size` elements; `most`, if more, are its elements if it is the last. */
template <class S, class D>
__device__ __forceinline__ Chunk chunk_of(const Row &row, u32 c, int size, int most) {
    const int phase = (int)phase_of<S, D>(row.dst);
    const i64 first = (i64)((u64)c * size) - phase;
    const i64 left = (i64)row.count - first; /* of the row */
    const int low = first < 0 ? phase : 0;
    constexpr int V = Shape<S, D>::V;
    return {row.src + first * (S::SIZE / 8), row.dst + first * (D::SIZE / 8), row.index + first, low,
            left < most ? (int)left : most, first < 0 ? phase : (first < V ? -(int)first : -V),
            left < size + V ? (int)left : size + V};
}

/* The groups [begin, end) that are whole. */
struct Whole {
    int begin, end;
};

template <class S, int V>
__device__ __forceinline__ Whole whole_groups(const Chunk &c, int size, bool is_shifted) {
    Whole w = {(c.low + V - 1) / V, (c.high < size ? c.high : size) / V};
    if (is_shifted) {
        constexpr int SB = S::SIZE / 8, BYTES = V * SB;
        const int off = (int)(c.src % BYTES);
        if (w.begin * BYTES - off < c.low_read * SB) w.begin++;
        if ((w.end + 1) * BYTES - off > c.high_read * SB) w.end--;
    }
    return w;
}

template <class S, class D, class Op>
__device__ __forceinline__ void convert_groups(const Chunk &c, const Whole &w, int lane, Kept kept, Op &op) {
    constexpr int V = Shape<S, D>::V, U = Shape<S, D>::UNROLL, LANES = Shape<S, D>::LANES;
    using SV = Vector<typename S::Bits, V>;
    using DV = Vector<typename D::Bits, V>;
#pragma unroll 1
    for (int g = w.begin + lane; g < w.end; g += LANES * U) {
        const u64 from = c.src + (i64)g * (i64)sizeof(SV), to = c.dst + (i64)g * (i64)sizeof(DV);
        Words<typename S::Bits, V> x[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (g + LANES * u < w.end) x[u] = load_words<typename S::Bits, V>(from + u * LANES * sizeof(SV), kept);
        in_turn<Op::LONG>(x, [&](int u, const Words<typename S::Bits, V> &words) {
            if (g + LANES * u < w.end) {
                const SV of = bits_as<SV>(words);
                DV y;
                op.group(of.v, y.v, c.index + (i64)(g + LANES * u) * V);
                store_streaming(to + u * LANES * sizeof(DV), y);
            }
        });
    }
}

/* The same where the source is not aligned: of the aligned vectors around it each is loaded once. */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_shifted(const Chunk &c, const Whole &w, int lane, Kept kept, Op &op) {
    constexpr int V = Shape<S, D>::V, U = Shape<S, D>::UNROLL_SHIFTED, LANES = Shape<S, D>::LANES;
    using SV = Vector<typename S::Bits, V>;
    using DV = Vector<typename D::Bits, V>;
    const unsigned off = (unsigned)c.src & (sizeof(SV) - 1);
    const u64 base = c.src - off;
#pragma unroll 1
    for (int first = w.begin; first < w.end; first += LANES * U) {
        const int g = first + lane;
        Words<typename S::Bits, V> x[U + 1] = {};
        /* The vector at w.end belongs to the last group; of x[U] only lane 0's is asked for. */
#pragma unroll
        for (int u = 0; u <= U; u++)
            if (g + LANES * u <= w.end && (u < U || lane == 0))
                x[u] = load_words<typename S::Bits, V>(base + (i64)(g + LANES * u) * (i64)sizeof(SV), kept);
        /* Groups take the vectors two by two: what follows a group's is the next one's. */
        Words<typename S::Bits, V> whole[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            whole[u] = bits_as<Words<typename S::Bits, V>>(shifted(x[u], of_next_lane(x[u], x[u + 1], lane), off));
        in_turn<Op::LONG>(whole, [&](int u, const Words<typename S::Bits, V> &words) {
            if (g + LANES * u < w.end) {
                const SV from = bits_as<SV>(words);
                DV y;
                op.group(from.v, y.v, c.index + (i64)(g + LANES * u) * V);
                store_streaming(c.dst + (i64)(g + LANES * u) * (i64)sizeof(DV), y);
            }
        });
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

/* Whole groups among the first `size` elements; what is left after them is done one by one. */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_chunk(const Chunk &c, int size, int lane, Kept kept, Op &op) {
    constexpr int V = Shape<S, D>::V;
    const bool is_shifted = c.src % (V * S::SIZE / 8) != 0;
    const Whole w = whole_groups<S, V>(c, size, is_shifted);
    if (is_shifted) {
        convert_shifted<S, D>(c, w, lane, kept, op);
    } else {
        convert_groups<S, D>(c, w, lane, kept, op);
    }
    convert_edges<S, D>(c, w, lane, op);
}

}  // namespace wp

#endif /* WARPOOL_TILE_CUH */
