/* load.cu: loads every kernel into the current context, ready for its launches. */
#include "device/launch.cuh"

namespace wp {

/* relocate.cu: lets the kernels that move data have their shared memory. */
cudaError_t ready_moves();

}  // namespace wp

extern "C" int wp_cuda_load(wp_u32 *kernels) {
    *kernels = 0;
    for (const wp::Listed *at = wp::all_kernels; at != nullptr; at = at->next) {
        cudaFuncAttributes attributes;
        const cudaError_t error = cudaFuncGetAttributes(&attributes, at->kernel);
        if (error != cudaSuccess) return error;
        ++*kernels;
    }
    return wp::ready_moves();
}

extern "C" void wp_cuda_limit(int processors, int threads, int cache) {
    __atomic_store_n(&wp::bounds.processors, processors, __ATOMIC_RELAXED);
    __atomic_store_n(&wp::bounds.threads, threads, __ATOMIC_RELAXED);
    __atomic_store_n(&wp::bounds.cache, cache, __ATOMIC_RELAXED);
}

extern "C" wp_u32 wp_cuda_abi(void) { return WP_ABI_VERSION; }
