/*
 * convert.cu: precision conversion.
 *
 * Bound by memory. 256 threads a block, no grid-stride: a block converts one segment of a row, or
 * several short rows. See device/tile.cuh for the shape and device/vector.cuh for odd alignments.
 */
#include "device/hardware.cuh"
#include "device/launch.cuh"
#include "device/philox.cuh"
#include "device/tile.cuh"

namespace wp {
namespace {

constexpr unsigned THREADS = 256;

/* What a kernel does with a group of elements. */
template <class S, class D, class Mode>
struct Plain {
    Mode mode;
    bool saturate;
    u64 seed;

    template <int V>
    __device__ __forceinline__ void group(const typename S::Bits (&x)[V], typename D::Bits (&y)[V], u64 index) {
        if constexpr (Mode::RANDOM) {
            u32 random[V];
            words<V>(random, index);
#pragma unroll
            for (int i = 0; i < V; i++) y[i] = element<S, D>(x[i], mode, saturate, random[i]);
        } else if constexpr (EXACT<S, D> || SAME_MODE<Mode, Nearest>) {
#pragma unroll
            for (int i = 0; i < V; i += 2) Hardware<S, D>::two(x + i, y + i, saturate);
        } else {
#pragma unroll
            for (int i = 0; i < V; i++) y[i] = element<S, D>(x[i], mode, saturate);
        }
    }

    __device__ __forceinline__ typename D::Bits one(typename S::Bits x, u64 index) {
        return element<S, D>(x, mode, saturate, Mode::RANDOM ? philox_word(seed, index) : 0);
    }

    /* The generator's words of V neighbours; `index` need not be a multiple of 4. */
    template <int V>
    __device__ __forceinline__ void words(u32 (&random)[V], u64 index) const {
        const unsigned off = (unsigned)index & 3;
        constexpr int BLOCKS = (V + 3) / 4;
        u32 all[4 * BLOCKS + 4];
#pragma unroll
        for (int b = 0; b <= BLOCKS; b++) {
            const bool needed = b < BLOCKS || off + V > 4 * BLOCKS;
            const Words4 w = needed ? philox(seed, index / 4 + b) : Words4{};
#pragma unroll
            for (int i = 0; i < 4; i++) all[4 * b + i] = w.v[i];
        }
#pragma unroll
        for (int i = 0; i < V + 2; i++) all[i] = off & 2 ? all[i + 2] : all[i];
#pragma unroll
        for (int i = 0; i < V; i++) random[i] = off & 1 ? all[i + 1] : all[i];
    }
};

/* How the rows are cut: `groups_log2` of the threads work on one segment. */
struct Cut {
    u64 segments_per_row;
    u64 segments;
    unsigned lanes_log2;
};

template <class S, class D, class Mode>
__global__ void __launch_bounds__(THREADS) rows_kernel(const wp_convert a, const Cut cut, Plain<S, D, Mode> op) {
    const unsigned lanes = 1u << cut.lanes_log2, lane = threadIdx.x & (lanes - 1);
    u64 segment = ((u64)blockIdx.x * THREADS + threadIdx.x) >> cut.lanes_log2;
    if (segment >= cut.segments) return;
    u64 r = 0;
    if (a.rows != 1) {
        r = segment / cut.segments_per_row;
        segment -= r * cut.segments_per_row;
    }
    const Row row = {a.src + r * a.src_pitch, a.dst + r * a.dst_pitch, a.count, r * a.count};
    convert_segment<S, D>(row, segment, lane, lanes, op);
}

/* Whether some row's destination starts inside a group, so that the row reaches into one more. */
template <class S, class D>
bool any_phase(const wp_convert &a) {
    const u64 group = Shape<S, D>::V * (D::SIZE / 8);
    return a.dst % group != 0 || (a.rows > 1 && a.dst_pitch % group != 0);
}

template <class S, class D>
Cut cut_rows(const wp_convert &a) {
    constexpr u64 PER_LANE = Shape<S, D>::V * Shape<S, D>::U;
    const u64 reach = a.count + (any_phase<S, D>(a) ? Shape<S, D>::V - 1 : 0);
    unsigned lanes_log2 = 5;
    while (lanes_log2 < 8 && (PER_LANE << lanes_log2) < reach) lanes_log2++;
    if (a.rows == 1) lanes_log2 = 8;
    const u64 segment = PER_LANE << lanes_log2;
    const u64 per_row = (reach + segment - 1) / segment;
    return {per_row, per_row * a.rows, lanes_log2};
}

template <class S, class D, class Mode>
int queue(const wp_convert &a, const Mode &mode, void *stream) {
    const Cut cut = cut_rows<S, D>(a);
    const u64 threads = cut.segments << cut.lanes_log2;
    const Plain<S, D, Mode> op = {mode, a.overflow == WP_SATURATE, a.seed};
    return launch(rows_kernel<S, D, Mode>, (threads + THREADS - 1) / THREADS, THREADS, stream, a, cut, op);
}

template <class S, class D>
int pair(const wp_convert &a, void *stream) {
    if constexpr (PAIR<S, D> && EXACT<S, D>) {
        return queue<S, D>(a, Nearest(), stream);
    } else if constexpr (PAIR<S, D>) {
        if (a.rounding == WP_NEAREST) return queue<S, D>(a, Nearest(), stream);
        if (a.rounding == WP_STOCHASTIC) return queue<S, D>(a, Stochastic(), stream);
        return queue<S, D>(a, Directed(a.rounding), stream);
    }
    return cudaErrorInvalidValue;
}

template <class S>
int from(const wp_convert &a, void *stream) {
    switch (a.dst_type) {
        case WP_F32: return pair<S, F32>(a, stream);
        case WP_F16: return pair<S, F16>(a, stream);
        case WP_BF16: return pair<S, BF16>(a, stream);
        case WP_E4M3: return pair<S, E4M3>(a, stream);
        case WP_E5M2: return pair<S, E5M2>(a, stream);
        case WP_F64: return pair<S, F64>(a, stream);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_convert(const wp_convert *args, void *stream) {
    using namespace wp;
    if (args->rounding > WP_STOCHASTIC || args->overflow > WP_SATURATE) return cudaErrorInvalidValue;
    if (args->count == 0 || args->rows == 0) return 0;
    switch (args->src_type) {
        case WP_F32: return from<F32>(*args, stream);
        case WP_F16: return from<F16>(*args, stream);
        case WP_BF16: return from<BF16>(*args, stream);
        case WP_E4M3: return from<E4M3>(*args, stream);
        case WP_E5M2: return from<E5M2>(*args, stream);
        case WP_F64: return from<F64>(*args, stream);
        default: return cudaErrorInvalidValue;
    }
}
