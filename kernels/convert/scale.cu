/*
 * scale.cu: loss scaling without a read on the host: unscaling with a check for finite values, and
 * the scale's update.
 */
#include "device/hardware.cuh"
#include "device/in_order.cuh"
#include "device/launch.cuh"
#include "device/pairs.cuh"
#include "device/scaler.cuh"
#include "device/vector.cuh"

namespace wp {
namespace {

constexpr unsigned THREADS = 256;
constexpr unsigned LANES = 32; /* threads of a tile */
constexpr int UNROLL = 4;

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

/*
 * The vectors of a tile have 16 bytes; the elements before and after them are done one by one. Returns
 * true if all are finite.
 */
template <class T>
__device__ __forceinline__ bool unscale_tile(const wp_tile &tile, float inverse, unsigned lane) {
    constexpr int V = 128 / T::SIZE;
    constexpr u64 B = T::SIZE / 8;
    const u32 head = (u32)((16 - tile.src % 16) % 16 / B);
    const u32 start = head < tile.count ? head : tile.count;
    const u32 vectors = (tile.count - start) / V;
    typename T::Bits *elements = (typename T::Bits *)tile.src;
    /*
     * At most V - 1 elements before the vectors and as many after them: one per lane, loaded first.
     */
    const u32 after = start + vectors * V;
    const u32 edge = lane < start ? lane : after + (lane - start);
    typename T::Bits end = 0;
    if (edge < tile.count) end = elements[edge];
    bool finite = is_finite<T>(end);
#pragma unroll 1
    for (u32 first = lane; first < vectors; first += LANES * UNROLL) {
        const u64 at = tile.src + start * B + (u64)first * 16;
        Vector<typename T::Bits, V> x[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (first + u * LANES < vectors) x[u] = load_streaming<typename T::Bits, V>(at + u * (LANES * 16));
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * LANES < vectors) {
                finite = unscale_group<T, V>(x[u], inverse) && finite;
                store_streaming(at + u * (LANES * 16), x[u]);
            }
        }
    }
    if (edge < tile.count) elements[edge] = unscaled<T>(end, inverse);
    return finite;
}

/* One warp per tile. A block stores its finding once, because all blocks write the same word. */
template <class T>
__global__ void __launch_bounds__(THREADS, 4) unscale_kernel(const wp_unscale a) {
    begin_in_order();
    const u64 share = blockIdx.x * (u64)(THREADS / LANES) + threadIdx.x / LANES;
    wp_scaler *scaler = (wp_scaler *)a.scaler;
    bool finite = true;
    if (share < a.count)
        finite = unscale_tile<T>(((const wp_tile *)a.tiles)[share], scaler->inverse, threadIdx.x % LANES);
    if (__syncthreads_or(!finite) && threadIdx.x == 0) set_flag(&scaler->found);
}

__global__ void update_kernel(const wp_scaler_update a) {
    begin_in_order();
    end_step(a);
}

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_unscale(const wp_unscale *args, void *stream) {
    using namespace wp;
    return with_destination<F32>(args->type, cudaErrorInvalidValue, [&](auto, auto t) -> int {
        using T = decltype(t);
        if constexpr (GRADIENT<T>) {
            constexpr u64 TILES = THREADS / LANES;
            return launch<unscale_kernel<T>>((args->count + TILES - 1) / TILES, THREADS, stream, *args);
        }
        return cudaErrorInvalidValue;
    });
}

extern "C" int wp_cuda_scaler_update(const wp_scaler_update *args, void *stream) {
    using namespace wp;
    return launch<update_kernel>(1, 1, stream, *args);
}
