/* scale.cu: loss scaling without a host read: unscale with finite check, and the scale's update. */
#include "device/hardware.cuh"
#include "device/launch.cuh"
#include "device/pairs.cuh"
#include "device/scaler.cuh"
#include "device/vector.cuh"

namespace wp {
namespace {

constexpr unsigned THREADS = 256;
constexpr int UNROLL = 2;

template <class T, int V>
__device__ __forceinline__ bool unscale_group(Vector<typename T::Bits, V> &x, float inverse) {
    bool finite = true;
    u32 wide[V];
#pragma unroll
    for (int i = 0; i < V; i++) finite = finite && is_finite<T>(x.v[i]);
#pragma unroll
    for (int i = 0; i < V; i++) wide[i] = multiply_add(widen<T, F32>(x.v[i]), inverse, -0.0f);
    if constexpr (SAME<T, F32>) {
#pragma unroll
        for (int i = 0; i < V; i++) x.v[i] = wide[i];
    } else {
#pragma unroll
        for (int i = 0; i < V; i += 2) Hardware<F32, T>::two(wide + i, x.v + i, false);
    }
    return finite;
}

/* A block a tile. The vectors of the tile are 16 bytes; its ends are done element by element. */
template <class T>
__global__ void __launch_bounds__(THREADS) unscale_kernel(const wp_unscale a) {
    constexpr int V = 128 / T::SIZE;
    constexpr u64 B = T::SIZE / 8;
    const wp_tile tile = ((const wp_tile *)a.tiles)[blockIdx.x];
    wp_scaler *scaler = (wp_scaler *)a.scaler;
    const float inverse = scaler->inverse;
    const u64 head = (16 - tile.src % 16) % 16 / B;
    const u64 start = head < tile.count ? head : tile.count;
    const u64 vectors = (tile.count - start) / V;
    typename T::Bits *elements = (typename T::Bits *)tile.src;
    bool finite = true;
#pragma unroll 1
    for (u64 first = threadIdx.x; first < vectors; first += THREADS * UNROLL) {
        Vector<typename T::Bits, V> x[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * THREADS < vectors)
                x[u] = load_streaming<typename T::Bits, V>(tile.src + start * B + (first + u * THREADS) * 16);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * THREADS < vectors) {
                finite = unscale_group<T, V>(x[u], inverse) && finite;
                store_streaming(tile.src + start * B + (first + u * THREADS) * 16, x[u]);
            }
        }
    }
    /* At most V - 1 elements before the vectors and as many after them. */
    const u64 after = start + vectors * V;
    const u64 edge = threadIdx.x < start ? threadIdx.x : after + (threadIdx.x - start);
    if (edge < tile.count) {
        finite = finite && is_finite<T>(elements[edge]);
        elements[edge] = unscaled<T>(elements[edge], inverse);
    }
    if (!finite) *(volatile u32 *)&scaler->found = 1;
}

__global__ void update_kernel(wp_scaler *scaler) { update_scaler(*scaler); }

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_unscale(const wp_unscale *args, void *stream) {
    using namespace wp;
    return with_destination<F32>(args->type, cudaErrorInvalidValue, [&](auto, auto t) -> int {
        using T = decltype(t);
        if constexpr (GRADIENT<T>) return launch(unscale_kernel<T>, args->count, THREADS, stream, *args);
        return cudaErrorInvalidValue;
    });
}

extern "C" int wp_cuda_scaler_update(const wp_scaler_update *args, void *stream) {
    using namespace wp;
    return launch(update_kernel, 1, 1, stream, (wp_scaler *)args->scaler);
}
