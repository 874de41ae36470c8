/*
 * in_order.cuh: the begin of every kernel.
 *
 * From compute capability 9.0 on, a kernel is placed on the multiprocessors while the last blocks of the kernel
 * before it on the stream end (CUDA's programmatic dependent launch), so that its start takes less time. Each
 * kernel first waits here, before it loads or stores anything, until all earlier work of the stream is done and
 * its stores are visible. scripts/check-sass.py fails if a kernel does not.
 */
#ifndef WARPOOL_IN_ORDER_CUH
#define WARPOOL_IN_ORDER_CUH

namespace wp {

/*
 * Called first by every thread of a kernel. It does not allow the next kernel to start early
 * (griddepcontrol.launch_dependents): that kernel's blocks would only wait, and keep out kernels of other streams.
 * Sums of gradients beside their casts, of 1 GiB, took 2.33 ms with it and 2.14 without (measured on two H100).
 */
__device__ __forceinline__ void begin_in_order() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace wp

#endif /* WARPOOL_IN_ORDER_CUH */
