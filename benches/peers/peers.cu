// What benches measure beside this crate's kernels. For `relocate` CUB's batched copy, and two kernels
// for moves to run beside, one that is bound by memory and one by arithmetic; for `convert` CUB's
// transform, with CUDA's own conversions as its function. A library of its own, which the benches load
// when it is there, so that nobody who uses the crate compiles CUB:
//
//   scripts/bench-peers.sh
#include <cub/device/device_memcpy.cuh>
#include <cub/device/device_transform.cuh>
#include <cuda/functional>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kVectors = 2; // a thread of the kernel bound by memory
constexpr unsigned kSteps = 4096;

__global__ void scale_vectors(float4 *data, size_t count) {
    size_t first = size_t{blockIdx.x} * kThreads * kVectors + threadIdx.x;
#pragma unroll
    for (unsigned v = 0; v < kVectors; ++v) {
        size_t at = first + v * kThreads;
        if (at < count) {
            float4 x = data[at];
            data[at] = {x.x * 0.5f, x.y * 0.5f, x.z * 0.5f, x.w * 0.5f};
        }
    }
}

__global__ void multiply_add(float *out) {
    float a = threadIdx.x, b = blockIdx.x, c = 1.0f, d = 2.0f;
    for (unsigned step = 0; step < kSteps; ++step) {
        a = a * 0.999f + 0.5f;
        b = b * 0.998f + 0.25f;
        c = c * 0.997f + 0.125f;
        d = d * 0.996f + 0.0625f;
    }
    if (a + b + c + d == 0.123f)
        *out = a;
}

template <typename To>
struct cast {
    template <typename From>
    __device__ To operator()(From x) const {
        return To(x);
    }
};

// The elements may be copied before the function is called, which is what lets CUB read them in bulk.
template <typename From, typename To>
int transform(const void *from, void *to, size_t count, cudaStream_t stream) {
    return cub::DeviceTransform::Transform(static_cast<const From *>(from), static_cast<To *>(to), count,
                                           cuda::proclaim_copyable_arguments(cast<To>{}), stream);
}

} // namespace

// As cub::DeviceTransform, from elements of one format to those of another. The pairs are numbered as
// benches/common/peers.rs has them.
extern "C" int peer_transform(unsigned pair, const void *from, void *to, size_t count, void *on) {
    cudaStream_t stream = static_cast<cudaStream_t>(on);
    switch (pair) {
    case 0: return transform<float, __half>(from, to, count, stream);
    case 1: return transform<float, __nv_bfloat16>(from, to, count, stream);
    case 2: return transform<float, __nv_fp8_e4m3>(from, to, count, stream);
    case 3: return transform<__half, float>(from, to, count, stream);
    case 4: return transform<__nv_bfloat16, float>(from, to, count, stream);
    case 5: return transform<__nv_bfloat16, __nv_fp8_e4m3>(from, to, count, stream);
    case 6: return transform<__nv_fp8_e4m3, float>(from, to, count, stream);
    case 7: return transform<double, float>(from, to, count, stream);
    default: return cudaErrorInvalidValue;
    }
}

// As cub::DeviceMemcpy::Batched: with `temp` null it only says how many bytes of it are needed.
extern "C" int peer_batched(void *temp, size_t *temp_bytes, const void *const *from, void *const *to,
                            const size_t *bytes, unsigned count, void *stream) {
    size_t needed = *temp_bytes;
    cudaError_t error = cub::DeviceMemcpy::Batched(temp, needed, from, to, bytes, count,
                                                   static_cast<cudaStream_t>(stream));
    *temp_bytes = needed;
    return error;
}

// Reads and writes `bytes` at `data` once, all of the device at it.
extern "C" int peer_use_memory(void *data, size_t bytes, void *stream) {
    size_t vectors = bytes / sizeof(float4), a_block = kThreads * kVectors;
    unsigned blocks = static_cast<unsigned>((vectors + a_block - 1) / a_block);
    scale_vectors<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<float4 *>(data), vectors);
    return cudaGetLastError();
}

// Computes, and touches no memory; `blocks` of 256 threads.
extern "C" int peer_compute(void *never_written, unsigned blocks, void *stream) {
    multiply_add<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<float *>(never_written));
    return cudaGetLastError();
}
