/*
 * block_kernel.cuh: the fused conversion of one run with the largest magnitude of each 32 elements.
 *
 * If both sides are aligned, adjacent lanes hold the groups of a block of 32 and exchange their
 * maxima. Otherwise, and at the end of the run, a warp does one block at a time, one element per
 * lane.
 */
#ifndef WARPOOL_BLOCK_KERNEL_CUH
#define WARPOOL_BLOCK_KERNEL_CUH

#include "fused_ops.cuh"
#include "in_order.cuh"
#include "launch.cuh"
#include "vector.cuh"

namespace wp {

constexpr int AMAX_BLOCK = 32;
constexpr int BLOCKS_UNROLL = 4, BLOCKS_GROUPS = 16; /* groups per lane at once, and in total */

/*
 * A warp's round of U groups per lane, from element `e`, the lane's first, on; or of one element per lane, as in
 * tile.cuh.
 */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_blocks(const wp_convert &a, u64 e, bool whole, Op &op) {
    constexpr int V = Shape<S, D>::V, U = BLOCKS_UNROLL;
    const u64 from = a.src + e * (S::SIZE / 8), to = a.dst + e * (D::SIZE / 8);
    using Own = Words<typename S::Bits, V>;
    Own x[U] = {};
    if (whole) {
#pragma unroll
        for (int u = 0; u < U; u++) x[u] = load_words<typename S::Bits, V>(from + u * 32 * sizeof(x[0]), Kept::IN_TURN);
    } else if (e < a.count) {
        Vector<typename S::Bits, V> same;
#pragma unroll
        for (int v = 0; v < V; v++) same.v[v] = *(const typename S::Bits *)from;
        x[0] = bits_as<Own>(same);
    }
    const u32 before = op.most;
    u32 most = before;
    in_turn<Op::LONG>(x, [&](int u, const Own &words) {
        const Vector<typename S::Bits, V> of = bits_as<Vector<typename S::Bits, V>>(words);
        const u64 first = e + u * 32 * V;
        op.most = 0;
        if (whole || e < a.count) {
            Vector<typename D::Bits, V> y;
            op.group(of.v, y.v, a.first + first, whole);
            if (whole) {
                store_streaming(to + u * 32 * sizeof(y), y);
            } else {
                *(typename D::Bits *)to = y.v[0];
            }
        }
        most = max(most, op.most);
        u32 block = op.most;
#pragma unroll
        for (int d = 1; d < AMAX_BLOCK / V; d *= 2) block = max(block, __shfl_xor_sync(0xFFFFFFFF, block, d));
        if (!whole) block = warp_max(block);
        if (first % AMAX_BLOCK == 0) ((u32 *)a.block_amax)[first / AMAX_BLOCK] = block;
    }, whole ? U : 1);
    op.most = most;
}

/* The block from element `start` on, one element per lane, if the code of an element is short. */
template <class S, class D, class Op>
__device__ __forceinline__ void convert_block(const wp_convert &a, u64 start, int lane, Op &op) {
    const u64 e = start + lane;
    const u32 before = op.most;
    op.most = 0;
    if (e < a.count) ((typename D::Bits *)a.dst)[e] = op.one(((const typename S::Bits *)a.src)[e], a.first + e);
    const u32 block = warp_max(op.most);
    op.most = max(op.most, before);
    if (lane == 0) ((u32 *)a.block_amax)[start / AMAX_BLOCK] = block;
}

template <class S, class D, class Op>
__global__ void __launch_bounds__(CONVERT_THREADS, Op::NEAREST ? 4 : 2) block_kernel(const wp_convert a, bool aligned, Op op) {
    begin_in_order();
    constexpr int V = Shape<S, D>::V;
    constexpr u64 ROUND = V * 32 * BLOCKS_UNROLL, SIZE = V * 32 * BLOCKS_GROUPS;
    const int lane = threadIdx.x % 32;
    const u64 start = (blockIdx.x * (u64)(CONVERT_THREADS / 32) + threadIdx.x / 32) * SIZE;
    const u64 end = start + SIZE < a.count ? start + SIZE : a.count;
    op.begin();
    u64 at = start;
    if constexpr (Op::LONG) {
#pragma unroll 1
        while (at < end) {
            const bool whole = aligned && at + ROUND <= end;
            convert_blocks<S, D>(a, at + (whole ? lane * V : lane), whole, op);
            at += whole ? ROUND : AMAX_BLOCK;
        }
    } else {
        if (aligned) {
#pragma unroll 1
            for (; at + ROUND <= end; at += ROUND) convert_blocks<S, D>(a, at + lane * V, true, op);
        }
#pragma unroll 1
        for (; at < end; at += AMAX_BLOCK) convert_block<S, D>(a, at, lane, op);
    }
    op.finish(0, false);
}

template <class S, class D, class Op>
int queue_blocks(const wp_convert &a, const Op &op, void *stream) {
    constexpr u64 V = Shape<S, D>::V, SIZE = V * CONVERT_THREADS * BLOCKS_GROUPS;
    const bool aligned = a.src % (V * S::SIZE / 8) == 0 && a.dst % (V * D::SIZE / 8) == 0;
    const u64 blocks = (a.count + SIZE - 1) / SIZE;
    return launch<block_kernel<S, D, Op>>(blocks, CONVERT_THREADS, stream, a, aligned, op);
}

}  // namespace wp

#endif /* WARPOOL_BLOCK_KERNEL_CUH */
