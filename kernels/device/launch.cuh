/* launch.cuh: how every entry point launches: no pending error of the application is consumed. */
#ifndef WARPOOL_LAUNCH_CUH
#define WARPOOL_LAUNCH_CUH

#include <cuda_runtime.h>

#include "host/shim.h"

namespace wp {

/* Queues `kernel` on `blocks` x `threads`; the error is this launch's own. */
template <class... Params, class... Args>
int launch(void (*kernel)(Params...), u64 blocks, unsigned threads, void *stream, Args... args) {
    if (blocks == 0) return WP_OK;
    if (blocks > 0x7FFFFFFFull) return WP_INVALID;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(threads);
    config.stream = (cudaStream_t)stream;
    return (int)cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace wp

#endif /* WARPOOL_LAUNCH_CUH */
