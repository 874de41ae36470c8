/*
 * convert_kernel.cuh: the conversion kernel over rows or over a table of tiles, and its launch.
 *
 * Bound by memory bandwidth. No grid-stride loop: a warp converts one chunk of a row, or one tile
 * of the table.
 */
#ifndef WARPOOL_CONVERT_KERNEL_CUH
#define WARPOOL_CONVERT_KERNEL_CUH

#include "ahead.cuh"
#include "divisor.cuh"
#include "in_order.cuh"
#include "launch.cuh"
#include "tile.cuh"

namespace wp {

/* The shares of a launch: chunks, `per_row` for each row, or tiles. */
struct Cut {
    u32 shares;
    u32 per_row;
    u32 ahead; /* how many tiles ahead to prefetch into L2, or 0 */
};

template <class S>
__device__ __forceinline__ void prefetch_tile(const wp_convert &a, const Cut &cut, u32 share, u32 most) {
    if (cut.ahead == 0 || share + cut.ahead >= cut.shares) return;
    const wp_tile *tile = (const wp_tile *)a.tiles + share + cut.ahead;
    const u32 count = tile->count < most ? tile->count : most;
    if (count != 0) prefetch(tile->src, count * (S::SIZE / 8));
}

/*
 * If a source is not aligned and the result is narrower, IN_TURN reached 1.01 of a copy's speed and
 * FIRST_OUT 0.89 to 0.94. If the result is as wide or wider, FIRST_OUT was better by 0.01, and by 0.05
 * and 0.16 for tables of 1,000 and 10,000 tensors: there tiles are prefetched, and these should stay in
 * the cache longer than used ones (measured on an H200).
 */
template <class S, class D>
__device__ __forceinline__ Kept kept_in_chunks(bool tiles) {
    return S::SIZE > D::SIZE && !tiles ? Kept::IN_TURN : Kept::FIRST_OUT;
}

/*
 * Conversions without an instruction on an architecture are computed, with registers for fewer threads: bf16
 * before compute capability 8.0, the 8-bit formats before 8.9. Between two 8-bit formats these are 16
 * elements at a time.
 */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
template <class S, class D>
constexpr int SPARED = S::SIZE == 8 && D::SIZE == 8 ? 2 : __CUDA_ARCH__ < 800 ? 1 : 0;
#else
template <class S, class D>
constexpr int SPARED = 0;
#endif
template <class S, class D, class Op>
constexpr int RESIDENT = Op::RESIDENT < 4 - SPARED<S, D> ? Op::RESIDENT : 4 - SPARED<S, D>;

template <class S, class D, class Op>
__global__ void __launch_bounds__(CONVERT_THREADS, RESIDENT<S, D, Op>) convert_kernel(const wp_convert a, const Cut cut, Op op) {
    begin_in_order();
    constexpr int SIZE = Shape<S, D>::TILE * Op::CHUNKS;
    constexpr unsigned LANES = Shape<S, D>::LANES;
    const u32 share = blockIdx.x * (CONVERT_THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const bool tiles = a.tiles != 0;
    u32 tensor = 0;
    op.begin();
    if (share < cut.shares) {
        Row row;
        u32 c = 0;
        if (tiles) {
            const wp_tile tile = ((const wp_tile *)a.tiles)[share];
            if (lane == 0) prefetch_tile<S>(a, cut, share, SIZE);
            row = {tile.src, tile.dst, tile.count, tile.index};
            tensor = tile.tensor;
        } else {
            const u32 r = cut.per_row == 1 ? share : share / cut.per_row;
            c = share - r * cut.per_row;
            row = {a.src + r * a.src_pitch, a.dst + r * a.dst_pitch, a.count, a.first + r * a.count};
        }
        const Chunk chunk = chunk_of<S, D>(row, c, SIZE, tiles ? 0x7FFFFFFF : SIZE);
        convert_chunk<S, D>(chunk, SIZE, lane, kept_in_chunks<S, D>(tiles), op);
    }
    op.finish(tensor, tiles);
}

/*
 * The threads that a multiprocessor holds, and those that a launch bound may name. Code compiled for 9.0 also becomes
 * machine code for 11.0 and 12.0, whose multiprocessors hold 1536 threads (build/arch.rs). scripts/check-sass.py
 * checks that the registers nevertheless allow 2048.
 */
#if __CUDA_ARCH__ == 750
constexpr unsigned MOST_THREADS = 1024, BOUND_THREADS = 1024;
#elif __CUDA_ARCH__ >= 860 && __CUDA_ARCH__ < 900
constexpr unsigned MOST_THREADS = 1536, BOUND_THREADS = 1536;
#elif __CUDA_ARCH__ >= 900
constexpr unsigned MOST_THREADS = 2048, BOUND_THREADS = 1536;
#else
constexpr unsigned MOST_THREADS = 2048, BOUND_THREADS = 2048;
#endif

/* As many blocks as wanted, limited to what a launch bound may name. */
constexpr unsigned bounded(unsigned blocks, unsigned threads) {
    return blocks * threads <= BOUND_THREADS ? blocks : BOUND_THREADS / threads;
}

/*
 * Blocks that fill a multiprocessor with threads, and the blocks of light operations. Before compute
 * capability 8.9, a conversion without its own instruction needs more registers than that many blocks leave.
 */
constexpr unsigned FLAT_BLOCKS = MOST_THREADS / CONVERT_THREADS;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
template <class S, class D>
constexpr unsigned LIGHT_BLOCKS = FLAT_BLOCKS * (SPARED<S, D> == 2 ? 4 : 6) / 8;
constexpr unsigned LIGHT_ROWS = FLAT_BLOCKS / 2;
#else
template <class S, class D>
constexpr unsigned LIGHT_BLOCKS = FLAT_BLOCKS;
constexpr unsigned LIGHT_ROWS = FLAT_BLOCKS * 5 / 8;
#endif

/*
 * Widening stores more than it loads, and the memory loses time whenever it changes direction. So some
 * blocks prefetch into L2 a run of the source that later blocks will load. With that, blocks of 1024
 * threads are better than of 256; without it they are worse. Fraction of a copy's speed (measured on an
 * H200):
 *   threads, ahead        e4m3 to f32   e4m3 to f16   f16 to f32
 *   256, none                0.957         0.971         0.973
 *   1024, none               0.881         0.919         0.925
 *   1024, 8 KiB by 2 MiB     0.984         0.991         0.991
 * If as much is loaded as stored, or more, it costs up to 3 %. Blocks of 512 if those of 1024 leave a
 * part of the multiprocessor empty.
 */
template <class S, class D>
constexpr bool WIDENS = D::SIZE > S::SIZE;
constexpr unsigned WIDE_THREADS = MOST_THREADS % 1024 == 0 ? 1024 : 512;

/* Asks for a run if one starts `ahead` bytes after the `bytes` of this block. */
__device__ __forceinline__ void prefetch_run(u64 src, u64 end, u32 bytes, u32 ahead) {
    const u64 at = src + (u64)blockIdx.x * bytes + ahead;
    if (blockIdx.x % (RUN_BYTES / bytes) == 0 && at + RUN_BYTES <= end) prefetch(at, RUN_BYTES);
}

/* Groups, U per thread, both sides aligned to their vectors; `ahead` is 0 for no prefetch. */
template <class S, class D, class Op>
__device__ __forceinline__ void flat_short(u64 src, u64 dst, u64 count, u64 number, u32 ahead, Op &op) {
    constexpr int V = Op::FLAT_GROUP, U = Op::FLAT;
    constexpr u64 SB = S::SIZE / 8, DB = D::SIZE / 8;
    const u32 threads = WIDENS<S, D> ? blockDim.x : CONVERT_THREADS;
    const u64 first = ((u64)blockIdx.x * (threads * U) + threadIdx.x) * V;
    const u64 step = threads * V;
    if constexpr (WIDENS<S, D>) {
        if (ahead != 0 && threadIdx.x == 0) prefetch_run(src, src + count * SB, threads * U * V * (u32)SB, ahead);
    }
    Vector<typename S::Bits, V> x[U];
#pragma unroll
    for (int u = 0; u < U; u++)
        if (first + u * step + V <= count) x[u] = load_streaming<typename S::Bits, V>(src + (first + u * step) * SB);
#pragma unroll
    for (int u = 0; u < U; u++) {
        const u64 e = first + u * step;
        if (e + V <= count) {
            Vector<typename D::Bits, V> y;
            op.group(x[u].v, y.v, number + e);
            store_streaming(dst + e * DB, y);
        }
    }
    /* The elements after the last whole group, one per thread. */
    const u64 i = count - count % V + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && i < count)
        ((typename D::Bits *)dst)[i] = op.one(((const typename S::Bits *)src)[i], number + i);
}

/*
 * The same for a long operation, one group per thread. The elements after the last whole group go through the same
 * copy of its code, one per thread: as groups of V copies of themselves, of which one result is stored.
 */
template <class S, class D, class Op>
__device__ __forceinline__ void flat_long(u64 src, u64 dst, u64 count, u64 number, Op &op) {
    static_assert(Op::FLAT == 1 && !WIDENS<S, D>, "a group a thread, in blocks of CONVERT_THREADS");
    constexpr int V = Op::FLAT_GROUP;
    using SV = Vector<typename S::Bits, V>;
    const u64 groups = count / V, thread = (u64)blockIdx.x * CONVERT_THREADS + threadIdx.x;
    const bool whole = thread < groups;
    const u64 e = whole ? thread * V : groups * V + (thread - groups), from = src + e * (S::SIZE / 8);
    if (e >= count) return;
    SV x;
    if (whole) {
        x = load_streaming<typename S::Bits, V>(from);
    } else {
#pragma unroll
        for (int v = 0; v < V; v++) x.v[v] = *(const typename S::Bits *)from;
    }
    Vector<typename D::Bits, V> y;
    op.group(x.v, y.v, number + e);
    if (whole) {
        store_streaming(dst + e * (D::SIZE / 8), y);
    } else {
        ((typename D::Bits *)dst)[e] = y.v[0];
    }
}

/*
 * One run whose first element has the number `number`, both sides aligned to their vectors. The common case is a
 * separate kernel, so that it needs few registers and a multiprocessor holds as many threads as possible. `ahead` is
 * 0 for no prefetch.
 */
template <class S, class D, class Op>
__global__ void __launch_bounds__(WIDENS<S, D> ? WIDE_THREADS : CONVERT_THREADS,
                                  WIDENS<S, D> ? BOUND_THREADS / WIDE_THREADS
                                  : Op::LIGHT  ? bounded(LIGHT_BLOCKS<S, D>, CONVERT_THREADS)
                                               : FLAT_BLOCKS * 5 / 8)
    flat_kernel(u64 src, u64 dst, u64 count, u64 number, u32 ahead, Op op) {
    begin_in_order();
    if constexpr (Op::LONG) {
        flat_long<S, D>(src, dst, count, number, op);
    } else {
        flat_short<S, D>(src, dst, count, number, ahead, op);
    }
}

/* Whether flat_kernel may be used. */
template <class S, class D, class Op>
bool is_flat(const wp_convert &a) {
    const u64 group = Op::FLAT_GROUP, most = 16;
    const u64 src = group * S::SIZE / 8, dst = group * D::SIZE / 8;
    return a.tiles == 0 && a.rows == 1 && a.src % (src < most ? src : most) == 0 &&
           a.dst % (dst < most ? dst : most) == 0;
}

/*
 * How far ahead a widening run of `bytes` prefetches its source, and its threads per block. 0, and the usual
 * threads, if the loaded code cannot prefetch or the run is short.
 */
template <auto KERNEL>
cudaError_t wide_launch(u64 bytes, u32 &ahead, unsigned &threads) {
    Facts facts;
    Code code;
    cudaError_t error = facts_of_device(facts);
    if (error == cudaSuccess) error = code_of<KERNEL>(code);
    if (error != cudaSuccess) return error;
    const u32 reach = run_ahead(facts.processors, facts.cache);
    if (code.capability < 90 || reach == 0 || bytes < 4ull * reach) return cudaSuccess;
    ahead = reach;
    threads = code.threads >= 1024 && facts.threads % 1024 == 0 ? 1024 : 512;
    return cudaSuccess;
}

template <class S, class D, class Op>
int queue_flat(const wp_convert &a, const Op &op, void *stream) {
    constexpr auto KERNEL = flat_kernel<S, D, Op>;
    u32 ahead = 0;
    unsigned threads = CONVERT_THREADS;
    if constexpr (WIDENS<S, D>) {
        /* A short run needs no query of the device. */
        const u64 bytes = a.count * (S::SIZE / 8);
        const cudaError_t error = bytes < SHORT_RUN ? cudaSuccess : wide_launch<KERNEL>(bytes, ahead, threads);
        if (error != cudaSuccess) return error;
    }
    const u64 group = Op::FLAT_GROUP, block = Op::FLAT * threads;
    const u64 shares = Op::LONG ? a.count / group + a.count % group : (a.count + group - 1) / group;
    const u64 blocks = (shares + block - 1) / block;
    return launch<KERNEL>(blocks, threads, stream, a.src, a.dst, a.count, a.first, ahead, op);
}

/* Rows of whole groups, all aligned: one group per thread, whatever its row. */
template <class S, class D, class Op>
__global__ void __launch_bounds__(CONVERT_THREADS, Op::LIGHT ? LIGHT_ROWS : 3)
    rows_kernel(const wp_convert a, u32 groups, const Divisor per_row, Op op) {
    begin_in_order();
    constexpr int V = Shape<S, D>::V, U = 4;
    const u32 first = blockIdx.x * (CONVERT_THREADS * U) + threadIdx.x;
    Words<typename S::Bits, V> x[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        const u32 g = first + u * CONVERT_THREADS, row = per_row.quotient(g);
        const u64 at = a.src + row * a.src_pitch + (u64)(g - row * per_row.d) * sizeof(x[0]);
        if (g < groups) x[u] = load_words<typename S::Bits, V>(at, Kept::IN_TURN);
    }
    in_turn<Op::LONG>(x, [&](int u, const Words<typename S::Bits, V> &words) {
        const u32 g = first + u * CONVERT_THREADS;
        if (g < groups) {
            const u32 row = per_row.quotient(g);
            const Vector<typename S::Bits, V> from = bits_as<Vector<typename S::Bits, V>>(words);
            Vector<typename D::Bits, V> y;
            op.group(from.v, y.v, a.first + (u64)g * V);
            store_streaming(a.dst + row * a.dst_pitch + (u64)(g - row * per_row.d) * sizeof(y), y);
        }
    });
}

/* Whether rows_kernel may be used. */
template <class S, class D>
bool are_whole_rows(const wp_convert &a) {
    constexpr u64 V = Shape<S, D>::V, SB = V * S::SIZE / 8, DB = V * D::SIZE / 8;
    const u64 groups = a.count / V;
    return a.tiles == 0 && a.count % V == 0 && groups > 1 && groups < 0x7FFF0000u / a.rows && a.src % SB == 0 &&
           a.dst % DB == 0 && a.src_pitch % SB == 0 && a.dst_pitch % DB == 0;
}

template <class S, class D, class Op>
int queue_rows(const wp_convert &a, const Op &op, void *stream) {
    const u64 per_row = a.count / Shape<S, D>::V, groups = per_row * a.rows;
    const u64 blocks = (groups + CONVERT_THREADS * 4 - 1) / (CONVERT_THREADS * 4);
    return launch<rows_kernel<S, D, Op>>(blocks, CONVERT_THREADS, stream, a, (u32)groups, Divisor((u32)per_row), op);
}

/* Whether any row's destination starts inside a group, so that the row extends into one more. */
template <class S, class D>
bool any_phase(const wp_convert &a) {
    const u64 group = Shape<S, D>::V * (D::SIZE / 8);
    return a.dst % group != 0 || (a.rows > 1 && a.dst_pitch % group != 0);
}

template <class S, class D, class Op>
int queue_convert(const wp_convert &a, const Op &op, void *stream) {
    const u64 size = (u64)Shape<S, D>::TILE * Op::CHUNKS;
    const u64 reach = a.count + (any_phase<S, D>(a) ? Shape<S, D>::V - 1 : 0);
    const u64 per_row = a.tiles != 0 ? 1 : (reach + size - 1) / size;
    /* A launch counts its shares in 32 bits. A row with more shares exceeds any device's memory. */
    const u64 most = per_row > 0 ? 0xFFFFFFF0u / per_row : a.rows;
    if (most == 0 || (a.tiles != 0 && a.rows > most)) return cudaErrorInvalidValue;
    if (a.rows > most) {
        wp_convert part = a;
        for (u64 row = 0; row < a.rows; row += most) {
            part.rows = a.rows - row < most ? a.rows - row : most;
            part.src = a.src + row * a.src_pitch;
            part.dst = a.dst + row * a.dst_pitch;
            part.first = a.first + row * a.count;
            const int error = queue_convert<S, D>(part, op, stream);
            if (error != cudaSuccess) return error;
        }
        return cudaSuccess;
    }
    const u64 shares = per_row * a.rows, at_once = CONVERT_THREADS / Shape<S, D>::LANES;
    u32 ahead = 0;
    if (a.tiles != 0) {
        Facts facts;
        const cudaError_t error = facts_of_device(facts);
        if (error != cudaSuccess) return error;
        ahead = tiles_ahead(facts.processors, facts.cache, Shape<S, D>::TILE * (S::SIZE / 8));
    }
    return launch<convert_kernel<S, D, Op>>((shares + at_once - 1) / at_once, CONVERT_THREADS, stream, a,
                                            Cut{(u32)shares, (u32)per_row, ahead}, op);
}

}  // namespace wp

#endif /* WARPOOL_CONVERT_KERNEL_CUH */
