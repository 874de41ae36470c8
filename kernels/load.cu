/* load.cu: loads every kernel into the current context, ready for its launches. */
#include "device/launch.cuh"

namespace wp {

/* relocate.cu: allows the moving kernels their shared memory. */
cudaError_t ready_moves();

}  // namespace wp

extern "C" int wp_cuda_load(wp_u32 *kernels) {
    *kernels = 0;
    int driver = 0, capability = 90;
    const cudaError_t known = cudaDriverGetVersion(&driver);
    if (known != cudaSuccess) return known;
    for (const wp::Listed *at = wp::all_kernels; at != nullptr; at = at->next) {
        cudaFuncAttributes attributes;
        const cudaError_t error = cudaFuncGetAttributes(&attributes, at->kernel);
        if (error != cudaSuccess) return error;
        capability = attributes.ptxVersion < capability ? attributes.ptxVersion : capability;
        ++*kernels;
    }
    /* One device where it is not so is enough for -1, and no other device changes that. */
    int unknown = 0;
    if (capability < 90 || driver < wp::EARLY_IN_GRAPHS) {
        __atomic_store_n(&wp::begins_early, -1, __ATOMIC_RELAXED);
    } else {
        __atomic_compare_exchange_n(&wp::begins_early, &unknown, 1, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    return wp::ready_moves();
}

extern "C" void wp_cuda_limit(int processors, int threads, int cache) {
    __atomic_store_n(&wp::bounds.processors, processors, __ATOMIC_RELAXED);
    __atomic_store_n(&wp::bounds.threads, threads, __ATOMIC_RELAXED);
    __atomic_store_n(&wp::bounds.cache, cache, __ATOMIC_RELAXED);
}

extern "C" wp_u32 wp_cuda_abi(void) { return WP_ABI_VERSION; }
