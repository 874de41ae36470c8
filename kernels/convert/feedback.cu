/* feedback.cu: gradients to codes, including the rounding errors of earlier codes. */
#include "device/feedback.cuh"
#include "device/in_order.cuh"
#include "device/launch.cuh"
#include "device/ops.cuh"
#include "device/pairs.cuh"
#include "device/vector.cuh"

namespace wp {
namespace {

constexpr unsigned THREADS = 256;
/* Elements of a thread: 16 bytes of F32, twice. */
constexpr int V = 4, UNROLL = 2;

template <class D, class Mode>
__global__ void __launch_bounds__(THREADS) feedback_kernel(const wp_feedback a) {
    begin_in_order();
    using Bits = typename D::Bits;
    const Mode mode = Mode();
    const float scale = *(const float *)a.scale, inverse = *(const float *)a.inverse;
    const u64 base = (u64)blockIdx.x * (THREADS * V * UNROLL) + threadIdx.x * V;
    Vector<u32, V> x[UNROLL], r[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const u64 i = base + u * (THREADS * V);
        if (i + V <= a.count) {
            x[u] = load_streaming<u32, V>(a.src + i * 4);
            r[u] = load_streaming<u32, V>(a.residual + i * 4);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const u64 i = base + u * (THREADS * V);
        if (i + V <= a.count) {
            u32 random[V / 2] = {};
            if constexpr (Mode::RANDOM) philox_pairs<V>(random, a.seed, a.first + i);
            Vector<Bits, V> code;
#pragma unroll
            for (int v = 0; v < V; v++)
                code.v[v] = fed_back<D>(x[u].v[v], r[u].v[v], scale, inverse, mode, random[v / 2] >> (v % 2 * 16) & 0xFFFF);
            store_streaming(a.residual + i * 4, r[u]);
            store_streaming(a.dst + i * sizeof(Bits), code);
        }
    }
    /* The elements after the last whole group, one per thread. */
    const u64 i = a.count - a.count % V + threadIdx.x;
    if (blockIdx.x == gridDim.x - 1 && i < a.count) {
        const u32 random = Mode::RANDOM ? philox_half(a.seed, a.first + i) : 0;
        u32 rest = ((u32 *)a.residual)[i];
        ((Bits *)a.dst)[i] = fed_back<D>(((const u32 *)a.src)[i], rest, scale, inverse, mode, random);
        ((u32 *)a.residual)[i] = rest;
    }
}

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_feedback(const wp_feedback *args, void *stream) {
    using namespace wp;
    if ((args->src | args->residual | args->dst) % 16 != 0) return cudaErrorInvalidValue;
    if (args->rounding != WP_NEAREST && args->rounding != WP_STOCHASTIC) return cudaErrorInvalidValue;
    return with_destination<F32>(args->type, cudaErrorInvalidValue, [&](auto, auto d) -> int {
        using D = decltype(d);
        if constexpr (NARROW<D>) {
            const u64 blocks = (args->count + THREADS * V * UNROLL - 1) / (THREADS * V * UNROLL);
            if (args->rounding == WP_STOCHASTIC) return launch<feedback_kernel<D, Stochastic>>(blocks, THREADS, stream, *args);
            return launch<feedback_kernel<D, Nearest>>(blocks, THREADS, stream, *args);
        }
        return cudaErrorInvalidValue;
    });
}
