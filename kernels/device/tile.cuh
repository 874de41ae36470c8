/*
 * tile.cuh: how the elements of a row are shared among threads.
 *
 * A thread owns groups of V elements, cut so that each group's destination is aligned: at the
 * element numbers k * V - phase. A group that the row does not fill, or whose source
 * window sticks out of the row, is done element by element; only the first and last of a row can be.
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

/*
 * Converts the groups `first + (lane + u * lanes) * V` of `row`; `first` may be negative. All
 * threads of a warp come here together. What `op` does is device/ops.cuh.
 */
template <class S, class D, bool Shifted, class Op>
__device__ __forceinline__ void convert_groups(const Row &row, i64 first, unsigned lane, unsigned lanes, Op &op) {
    constexpr int V = Shape<S, D>::V, U = Op::UNROLL;
    constexpr u64 SB = S::SIZE / 8, DB = D::SIZE / 8;
    using SV = Vector<typename S::Bits, V>;
    using DV = Vector<typename D::Bits, V>;
    const i64 count = (i64)row.count;
    /* Only where the groups follow the elements and not the destination can it be unaligned. */
    const bool stores = !Op::BLOCKS || row.dst % sizeof(DV) == 0;
    SV x[U];
    bool full[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        const i64 e = first + (i64)(lane + u * lanes) * V;
        const u64 at = row.src + e * SB;
        full[u] = e >= 0 && e + V <= count && stores;
        if (Shifted) {
            const u64 low = at & ~(u64)(sizeof(SV) - 1);
            full[u] = full[u] && low >= row.src && low + 2 * sizeof(SV) <= row.src + row.count * SB;
        }
        if (full[u]) x[u] = Shifted ? load_shifted<typename S::Bits, V>(at) : load_streaming<typename S::Bits, V>(at);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        const i64 e = first + (i64)(lane + u * lanes) * V;
        if (full[u]) {
            DV y;
            op.group(x[u].v, y.v, row.index + e);
            store_streaming(row.dst + e * DB, y);
        } else {
            for (i64 i = e < 0 ? 0 : e; i < e + V && i < count; i++)
                ((typename D::Bits *)row.dst)[i] = op.one(((const typename S::Bits *)row.src)[i], row.index + i);
        }
        op.template done<V>(e, row.count);
    }
}

/* Segment `segment` of `row`, by `lanes` threads; a segment has lanes * V * U elements. */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_segment(const Row &row, u64 segment, unsigned lane, unsigned lanes, Op &op) {
    constexpr int V = Shape<S, D>::V, U = Op::UNROLL;
    const unsigned phase = Op::BLOCKS ? 0 : phase_of<S, D>(row.dst);
    const i64 first = (i64)(segment * lanes * (V * U)) - phase;
    const u64 start = row.src - (u64)phase * (S::SIZE / 8);
    if (start % (V * S::SIZE / 8) == 0) {
        convert_groups<S, D, false>(row, first, lane, lanes, op);
    } else {
        convert_groups<S, D, true>(row, first, lane, lanes, op);
    }
}

}  // namespace wp

#endif /* WARPOOL_TILE_CUH */
