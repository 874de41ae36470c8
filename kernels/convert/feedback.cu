/* feedback.cu: gradients to codes, with what the codes lost before. */
#include "device/feedback.cuh"
#include "device/launch.cuh"
#include "device/pairs.cuh"
#include "device/philox.cuh"
#include "device/vector.cuh"

namespace wp {
namespace {

constexpr unsigned THREADS = 256;
/* Elements of a thread: 16 bytes of F32, twice. */
constexpr int V = 4, UNROLL = 2;

template <class D, class Mode>
__device__ __forceinline__ typename D::Bits one(const wp_feedback &a, u64 i, u32 x, u32 &r, float s, float inv, const Mode &mode) {
    return fed_back<D>(x, r, s, inv, mode, Mode::RANDOM ? philox_half(a.seed, a.first + i) : 0);
}

template <class D, class Mode>
__global__ void __launch_bounds__(THREADS) feedback_kernel(const wp_feedback a) {
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
            Vector<Bits, V> code;
#pragma unroll
            for (int v = 0; v < V; v++) code.v[v] = one<D>(a, i + v, x[u].v[v], r[u].v[v], scale, inverse, mode);
            store_streaming(a.residual + i * 4, r[u]);
            store_streaming(a.dst + i * sizeof(Bits), code);
        } else {
            for (u64 j = i; j < a.count; j++) {
                u32 rest = ((u32 *)a.residual)[j];
                ((Bits *)a.dst)[j] = one<D>(a, j, ((const u32 *)a.src)[j], rest, scale, inverse, mode);
                ((u32 *)a.residual)[j] = rest;
            }
        }
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
