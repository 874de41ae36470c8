/*
 * in_order.cuh: where every kernel begins.
 *
 * From compute capability 9.0 on a kernel is put on the multiprocessors while the last blocks of the one before
 * it on the stream end (CUDA's programmatic dependent launch), so that its start costs less time of its own. Each
 * kernel first waits here, before it loads or stores anything, until all earlier work of the stream is
 * done and what that stored is seen. scripts/check-sass.py fails where one does not.
 */
#ifndef WARPOOL_IN_ORDER_CUH
#define WARPOOL_IN_ORDER_CUH

namespace wp {

/*
 * Called first by every thread of a kernel. That the next one may be there sooner (griddepcontrol.launch_dependents)
 * is not said here: its blocks, which only wait, would keep kernels of other streams out. Sums of gradients beside
 * their casts, of 1 GiB, took 2.33 ms so, and 2.14 without (measured on two H100).
 */
__device__ __forceinline__ void begin_in_order() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace wp

#endif /* WARPOOL_IN_ORDER_CUH */
