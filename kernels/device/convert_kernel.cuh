/*
 * convert_kernel.cuh: the conversion kernel over rows or over a table of tiles, and its launch.
 *
 * Bound by memory. No grid-stride: a block converts one segment of a row, several short rows, or one
 * tile of the table.
 */
#ifndef WARPOOL_CONVERT_KERNEL_CUH
#define WARPOOL_CONVERT_KERNEL_CUH

#include "launch.cuh"
#include "tile.cuh"

namespace wp {

/* How the rows are cut: 2^lanes_log2 threads work on one segment. */
struct Cut {
    u64 segments_per_row;
    u64 segments;
    unsigned lanes_log2;
};

template <class S, class D, class Op>
__global__ void __launch_bounds__(CONVERT_THREADS, 3) convert_kernel(const wp_convert a, const Cut cut, Op op) {
    constexpr unsigned PER_LANE = Shape<S, D>::V * Op::UNROLL;
    op.begin();
    unsigned lanes_log2 = cut.lanes_log2;
    u64 segment = 0, end, r = 0;
    u32 tensor = 0;
    Row row;
    if (a.tiles != 0) {
        const wp_tile tile = ((const wp_tile *)a.tiles)[blockIdx.x];
        row = {tile.src, tile.dst, tile.count, tile.index};
        end = (tile.count + phase_of<S, D>(tile.dst) + PER_LANE * CONVERT_THREADS - 1) / (PER_LANE * CONVERT_THREADS);
        tensor = tile.tensor;
        lanes_log2 = 8;
    } else {
        segment = ((u64)blockIdx.x * CONVERT_THREADS + threadIdx.x) >> lanes_log2;
        if (segment >= cut.segments) return;
        if (a.rows != 1) {
            r = segment / cut.segments_per_row;
            segment -= r * cut.segments_per_row;
        }
        row = {a.src + r * a.src_pitch, a.dst + r * a.dst_pitch, a.count, r * a.count};
        end = segment + 1;
    }
    const unsigned lanes = 1u << lanes_log2, lane = threadIdx.x & (lanes - 1);
#pragma unroll 1
    for (; segment < end; segment++) convert_segment<S, D>(row, segment, lane, lanes, op);
    op.finish(tensor);
}

/* Blocks that fill a multiprocessor with threads. */
#if __CUDA_ARCH__ == 750
constexpr unsigned FLAT_BLOCKS = 1024 / CONVERT_THREADS;
#elif __CUDA_ARCH__ >= 1200 || (__CUDA_ARCH__ >= 860 && __CUDA_ARCH__ < 900)
constexpr unsigned FLAT_BLOCKS = 1536 / CONVERT_THREADS;
#else
constexpr unsigned FLAT_BLOCKS = 2048 / CONVERT_THREADS;
#endif

/*
 * One run, both sides aligned to their vectors: the common case, kept apart so that it needs few
 * registers and a multiprocessor holds as many threads as it can.
 */
template <class S, class D, class Op>
__global__ void __launch_bounds__(CONVERT_THREADS, FLAT_BLOCKS) flat_kernel(u64 src, u64 dst, u64 count, Op op) {
    constexpr int V = Shape<S, D>::V, U = Op::UNROLL;
    constexpr u64 SB = S::SIZE / 8, DB = D::SIZE / 8;
    const u64 first = ((u64)blockIdx.x * (CONVERT_THREADS * U) + threadIdx.x) * V;
    constexpr u64 STEP = CONVERT_THREADS * V;
    Vector<typename S::Bits, V> x[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        if (first + u * STEP + V <= count) x[u] = load_streaming<typename S::Bits, V>(src + (first + u * STEP) * SB);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const u64 e = first + u * STEP;
        if (e + V <= count) {
            Vector<typename D::Bits, V> y;
            op.group(x[u].v, y.v, e);
            store_streaming(dst + e * DB, y);
        } else {
            for (u64 i = e; i < count; i++)
                ((typename D::Bits *)dst)[i] = op.one(((const typename S::Bits *)src)[i], i);
        }
    }
}

/* Whether flat_kernel may be used. */
template <class S, class D>
bool is_flat(const wp_convert &a) {
    const u64 group = Shape<S, D>::V;
    return a.tiles == 0 && a.rows == 1 && a.src % (group * S::SIZE / 8) == 0 && a.dst % (group * D::SIZE / 8) == 0;
}

template <class S, class D, class Op>
int queue_flat(const wp_convert &a, const Op &op, void *stream) {
    const u64 block = Shape<S, D>::V * Op::UNROLL * CONVERT_THREADS;
    const u64 blocks = (a.count + block - 1) / block;
    return launch(flat_kernel<S, D, Op>, blocks, CONVERT_THREADS, stream, a.src, a.dst, a.count, op);
}

/* Whether some row's destination starts inside a group, so that the row reaches into one more. */
template <class S, class D>
bool any_phase(const wp_convert &a) {
    const u64 group = Shape<S, D>::V * (D::SIZE / 8);
    return a.dst % group != 0 || (a.rows > 1 && a.dst_pitch % group != 0);
}

template <class S, class D, class Op>
Cut cut_rows(const wp_convert &a) {
    constexpr u64 PER_LANE = Shape<S, D>::V * Op::UNROLL;
    const u64 reach = a.count + (any_phase<S, D>(a) ? Shape<S, D>::V - 1 : 0);
    unsigned lanes_log2 = 5; /* whole warps, which the operations count on */
    while (lanes_log2 < 8 && (PER_LANE << lanes_log2) < reach) lanes_log2++;
    if (a.rows == 1) lanes_log2 = 8;
    const u64 segment = PER_LANE << lanes_log2;
    const u64 per_row = (reach + segment - 1) / segment;
    return {per_row, per_row * a.rows, lanes_log2};
}

template <class S, class D, class Op>
int queue_convert(const wp_convert &a, const Op &op, void *stream) {
    if (a.tiles != 0) return launch(convert_kernel<S, D, Op>, a.rows, CONVERT_THREADS, stream, a, Cut{}, op);
    const Cut cut = cut_rows<S, D, Op>(a);
    const u64 threads = cut.segments << cut.lanes_log2;
    const u64 blocks = (threads + CONVERT_THREADS - 1) / CONVERT_THREADS;
    return launch(convert_kernel<S, D, Op>, blocks, CONVERT_THREADS, stream, a, cut, op);
}

}  // namespace wp

#endif /* WARPOOL_CONVERT_KERNEL_CUH */
