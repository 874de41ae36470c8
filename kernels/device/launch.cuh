/*
 * launch.cuh: the launch of every kernel, and the device's properties that launches use.
 *
 * The runtime keeps one last error per thread, shared with the application. A launch in triple
 * brackets reports an error only there. Reading it would take an older error, of the application or of
 * another launch, for this launch's own, and clear it. cudaLaunchKernelEx returns its own error. So do
 * the other calls here, which leave the last error unchanged if they succeed.
 *
 * A kernel enters a list because it is named where it is launched, before main runs; wp_cuda_load
 * loads the kernels in the list. So none can be missing.
 */
#ifndef WARPOOL_LAUNCH_CUH
#define WARPOOL_LAUNCH_CUH

#include <cuda.h>
#include <cuda_runtime.h>

#include "host/shim.h"

namespace wp {

/* A kernel in the list. */
struct Listed {
    const void *kernel;
    const Listed *next;
    explicit Listed(const void *kernel);
};

/* The whole list; empty before the first Listed is made. */
inline const Listed *all_kernels = nullptr;

inline Listed::Listed(const void *kernel) : kernel(kernel), next(all_kernels) { all_kernels = this; }

template <auto KERNEL>
struct InList {
    static const Listed entry;
};
template <auto KERNEL>
const Listed InList<KERNEL>::entry((const void *)KERNEL);

/*
 * Whether a launch may start while the kernel before it ends (in_order.cuh). 1 once wp_cuda_load has found that the
 * loaded code waits for that kernel itself, and that the driver can capture such launches; -1 once it has found a
 * device where this is not so.
 */
inline int begins_early = 0;

/* The first driver that can capture such launches into graphs (release notes of CUDA 12.3). */
constexpr int EARLY_IN_GRAPHS = 12030;

/* The arguments as the kernel's parameters. */
template <class... Params, class... Args>
int launch_as(void (*kernel)(Params...), const cudaLaunchConfig_t &config, const Args &...args) {
    return (int)cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

/*
 * Queues a kernel of `blocks` x `threads` with `shared` bytes per block; returns this launch's own error.
 */
template <auto KERNEL, class... Args>
int launch_shared(u64 blocks, unsigned threads, unsigned shared, void *stream, const Args &...args) {
    (void)&InList<KERNEL>::entry;
    if (blocks == 0) return WP_OK;
    if (blocks > 0x7FFFFFFFull) return WP_INVALID;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = (cudaStream_t)stream;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = __atomic_load_n(&begins_early, __ATOMIC_RELAXED) > 0 ? 1 : 0;
    return launch_as(KERNEL, config, args...);
}

template <auto KERNEL, class... Args>
int launch(u64 blocks, unsigned threads, void *stream, const Args &...args) {
    return launch_shared<KERNEL>(blocks, threads, 0, stream, args...);
}

/* An attribute of the current device. */
inline cudaError_t device_attribute(cudaDeviceAttr attribute, int &value) {
    int device = 0;
    const cudaError_t error = cudaGetDevice(&device);
    return error != cudaSuccess ? error : cudaDeviceGetAttribute(&value, attribute, device);
}

/*
 * Allows blocks of `kernel` on the current device `bytes` of dynamic shared memory: more than 48 KiB
 * must be requested. Through the driver's call, which cudaFuncSetAttribute makes too: the runtime sets
 * the thread's last error to the call's result, and so clears an older error on success.
 */
inline cudaError_t allow_shared(const void *kernel, unsigned bytes) {
    using Set = CUresult (*)(CUfunction_attribute, int, CUkernel, CUdevice);
    void *set = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuKernelSetAttribute", &set, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint("cuKernelSetAttribute", &set, cudaEnableDefault, &found);
#endif
    if (error == cudaSuccess && found != cudaDriverEntryPointSuccess) error = cudaErrorSymbolNotFound;
    cudaKernel_t handle = nullptr;
    if (error == cudaSuccess) error = cudaGetKernel(&handle, kernel);
    int device = 0;
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error != cudaSuccess) return error;
    /* The codes of the two enumerations are the same. */
    return (cudaError_t)((Set)set)(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes, handle, device);
}

/* The properties of the current device that launches depend on. */
struct Facts {
    int processors;
    int threads; /* that a multiprocessor holds */
    int cache;   /* bytes of L2 */
};

/* The limits of wp_cuda_limit(); 0 sets no limit. */
inline Facts bounds = {};

inline void bound(int &fact, const int &most) {
    const int least = __atomic_load_n(&most, __ATOMIC_RELAXED);
    fact = least > 0 && least < fact ? least : fact;
}

inline cudaError_t facts_of_device(Facts &facts) {
    cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, facts.processors);
    if (error == cudaSuccess) error = device_attribute(cudaDevAttrMaxThreadsPerMultiProcessor, facts.threads);
    if (error == cudaSuccess) error = device_attribute(cudaDevAttrL2CacheSize, facts.cache);
    bound(facts.processors, bounds.processors);
    bound(facts.threads, bounds.threads);
    bound(facts.cache, bounds.cache);
    return error;
}

/*
 * The loaded code of a kernel: the compute capability that it was compiled for, times ten, which
 * may be lower than the device's, and the largest block.
 */
struct Code {
    int capability;
    int threads;
};

template <auto KERNEL>
cudaError_t code_of(Code &code) {
    cudaFuncAttributes attributes = {};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, KERNEL);
    code = {attributes.ptxVersion, attributes.maxThreadsPerBlock};
    return error;
}

}  // namespace wp

#endif /* WARPOOL_LAUNCH_CUH */
