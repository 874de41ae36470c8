/*
 * tile.cuh: how a warp converts its share of a row, a chunk.
 *
 * Lanes own groups of V elements, cut so that each group's destination is aligned. A group that the
 * chunk does not fill, or whose source window extends beyond the row, is done element by element,
 * one per lane. Only the first and last group of a chunk can be such.
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

/* Elements [low, high); [low_read, high_read) may be read. Counted from `src`. */
struct Chunk {
    u64 src; /* start of the first group, perhaps before the row */
    u64 dst; /* a multiple of the group */
    u64 index;
    int low, high, low_read, high_read;
};

/* Chunk `c` of `row`, in chunks of `size` elements; the last chunk has `most` elements if that is more. */
template <class S, class D>
__device__ __forceinline__ Chunk chunk_of(const Row &row, u32 c, int size, int most) {
    const int phase = (int)phase_of<S, D>(row.dst);
    const i64 first = (i64)((u64)c * size) - phase;
    const i64 left = (i64)row.count - first; /* elements left in the row */
    const int low = first < 0 ? phase : 0;
    constexpr int V = Shape<S, D>::V;
    return {row.src + first * (S::SIZE / 8), row.dst + first * (D::SIZE / 8), row.index + first, low,
            left < most ? (int)left : most, first < 0 ? phase : (first < V ? -(int)first : -V),
            left < size + V ? (int)left : size + V};
}

/* The whole groups [begin, end). */
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

/* The elements outside whole groups: `before` at the beginning, and from `second` on at the end. */
struct Ends {
    int low, before, second, count;
    WP_HD int element(int i) const { return i < before ? low + i : second + (i - before); }
};

template <int V>
__device__ __forceinline__ Ends ends_of(const Chunk &c, const Whole &w) {
    const bool none = w.end <= w.begin;
    const int before = (none ? c.high : w.begin * V) - c.low, after = none ? 0 : c.high - w.end * V;
    return {c.low, before, w.end * V, before + after};
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
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (g + LANES * u >= w.end) continue;
            const SV of = bits_as<SV>(x[u]);
            DV y;
            op.group(of.v, y.v, c.index + (i64)(g + LANES * u) * V);
            store_streaming(to + u * LANES * sizeof(DV), y);
        }
    }
}

/*
 * The vectors from group `first` on, one more than there are groups, if the source is not aligned: each
 * aligned vector around it is loaded once. The one at w.end belongs to the last group; of the last vector
 * only lane 0's is loaded.
 */
template <class S, class D, int N>
__device__ __forceinline__ void load_shifted(Words<typename S::Bits, Shape<S, D>::V> (&x)[N], const Chunk &c, const Whole &w,
                                             int first, int lane, Kept kept) {
    constexpr int V = Shape<S, D>::V, LANES = Shape<S, D>::LANES;
    using Own = Words<typename S::Bits, V>;
    const unsigned off = (unsigned)c.src & (sizeof(Own) - 1);
    const u64 base = c.src - off;
#pragma unroll
    for (int u = 0; u < N; u++) {
        const int g = first + lane + LANES * u;
        x[u] = {};
        if (g <= w.end && (u < N - 1 || lane == 0))
            x[u] = load_words<typename S::Bits, V>(base + (i64)g * (i64)sizeof(Own), kept);
    }
    /* Groups use the vectors in pairs: the second vector of a group is the first of the next. */
#pragma unroll
    for (int u = 0; u + 1 < N; u++) x[u] = bits_as<Own>(shifted(x[u], of_next_lane(x[u], x[u + 1], lane), off));
}

template <class S, class D, class Op>
__device__ __forceinline__ void convert_shifted(const Chunk &c, const Whole &w, int lane, Kept kept, Op &op) {
    constexpr int V = Shape<S, D>::V, U = Shape<S, D>::UNROLL_SHIFTED, LANES = Shape<S, D>::LANES;
    using SV = Vector<typename S::Bits, V>;
    using DV = Vector<typename D::Bits, V>;
#pragma unroll 1
    for (int first = w.begin; first < w.end; first += LANES * U) {
        const int g = first + lane;
        Words<typename S::Bits, V> x[U + 1];
        load_shifted<S, D>(x, c, w, first, lane, kept);
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (g + LANES * u >= w.end) continue;
            const SV from = bits_as<SV>(x[u]);
            DV y;
            op.group(from.v, y.v, c.index + (i64)(g + LANES * u) * V);
            store_streaming(c.dst + (i64)(g + LANES * u) * (i64)sizeof(DV), y);
        }
    }
}

/* The elements outside whole groups: a few at either end. */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_ends(const Chunk &c, const Ends &ends, int lane, Op &op) {
#pragma unroll 1
    for (int i = lane; i < ends.count; i += Shape<S, D>::LANES) {
        const i64 e = ends.element(i);
        ((typename D::Bits *)c.dst)[e] = op.one(((const typename S::Bits *)c.src)[e], c.index + e);
    }
}

/*
 * Groups, shifted or not, and the ends by one copy of a long operation's code, whose compilation takes
 * most of a build. An element at an end is a group of V copies of itself, of which one result is stored.
 */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_rolled(const Chunk &c, const Whole &w, const Ends &ends, bool is_shifted, int lane,
                                               Kept kept, Op &op) {
    constexpr int V = Shape<S, D>::V, U = Shape<S, D>::UNROLL, LANES = Shape<S, D>::LANES;
    static_assert(U == Shape<S, D>::UNROLL_SHIFTED + 1, "a vector more than groups is loaded of a shifted source");
    using SV = Vector<typename S::Bits, V>;
    using DV = Vector<typename D::Bits, V>;
    int first = w.begin, i = lane;
#pragma unroll 1
    while (first < w.end || i - lane < ends.count) {
        const bool whole = first < w.end;
        const int e = ends.element(i), count = !whole ? 1 : is_shifted ? U - 1 : U;
        Words<typename S::Bits, V> x[U] = {};
        if (whole && is_shifted) {
            load_shifted<S, D>(x, c, w, first, lane, kept);
        } else if (whole) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int g = first + lane + LANES * u;
                if (g < w.end) x[u] = load_words<typename S::Bits, V>(c.src + (i64)g * (i64)sizeof(SV), kept);
            }
        } else if (i < ends.count) {
            SV same;
#pragma unroll
            for (int v = 0; v < V; v++) same.v[v] = ((const typename S::Bits *)c.src)[e];
            x[0] = bits_as<Words<typename S::Bits, V>>(same);
        }
        in_turn<true>(x, [&](int u, const Words<typename S::Bits, V> &words) {
            const int g = first + lane + LANES * u;
            if (whole ? g >= w.end : i >= ends.count) return;
            const SV from = bits_as<SV>(words);
            DV y;
            op.group(from.v, y.v, c.index + (whole ? (i64)g * V : (i64)e), whole);
            if (whole) {
                store_streaming(c.dst + (i64)g * (i64)sizeof(DV), y);
            } else {
                ((typename D::Bits *)c.dst)[e] = y.v[0];
            }
        }, count);
        first += whole ? LANES * count : 0;
        i += whole ? 0 : LANES;
    }
}

/* Whole groups among the first `size` elements; the elements after them are done one by one. */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_chunk(const Chunk &c, int size, int lane, Kept kept, Op &op) {
    constexpr int V = Shape<S, D>::V;
    const bool is_shifted = c.src % (V * S::SIZE / 8) != 0;
    const Whole w = whole_groups<S, V>(c, size, is_shifted);
    const Ends ends = ends_of<V>(c, w);
    if constexpr (Op::LONG) {
        convert_rolled<S, D>(c, w, ends, is_shifted, lane, kept, op);
    } else {
        if (is_shifted) {
            convert_shifted<S, D>(c, w, lane, kept, op);
        } else {
            convert_groups<S, D>(c, w, lane, kept, op);
        }
        convert_ends<S, D>(c, ends, lane, op);
    }
}

}  // namespace wp

#endif /* WARPOOL_TILE_CUH */
