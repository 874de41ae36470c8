// Bulk copies between global and shared memory, from compute capability 9.0 on. The copy engine of a
// multiprocessor moves a run of bytes, and a barrier in shared memory completes when a load has
// arrived. Addresses and lengths are multiples of 16.
#ifndef WARPOOL_DEVICE_BULK_CUH
#define WARPOOL_DEVICE_BULK_CUH

#include "warpool.h"

namespace wp {

constexpr wp_u64 kGranule = 2u << 20; // mappings start and end at multiples of this

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ wp_u32 shared_addr(const void *at) {
    return static_cast<wp_u32>(__cvta_generic_to_shared(at));
}

// A barrier that completes with one arrival and the bytes that it announced.
__device__ __forceinline__ void barrier_init(wp_u64 *barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                 "fence.mbarrier_init.release.cluster;\n" ::"r"(shared_addr(barrier))
                 : "memory");
}

// Announces the bytes of the loads, and arrives.
__device__ __forceinline__ void barrier_expect(wp_u64 *barrier, wp_u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_addr(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(wp_u64 *barrier, wp_u32 parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_addr(barrier)),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void bulk_load(unsigned char *stage, wp_addr src, wp_u32 bytes, wp_u64 *landed) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_addr(stage)),
                 "l"(src), "r"(bytes), "r"(shared_addr(landed))
                 : "memory");
}

__device__ __forceinline__ void bulk_store(wp_addr dst, const unsigned char *stage, wp_u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(shared_addr(stage)),
                 "r"(bytes)
                 : "memory");
}

// Bytes of [addr, addr + bytes) in the first granule of mapped memory. compute-sanitizer takes
// adjacent mappings for two allocations and reports one copy across both, so such a copy is split.
__device__ __forceinline__ wp_u32 in_granule(wp_addr addr, wp_u32 bytes) {
    wp_u64 room = kGranule - addr % kGranule;
    return room < bytes ? static_cast<wp_u32>(room) : bytes;
}

__device__ __forceinline__ void bulk_load_mapped(unsigned char *stage, wp_addr src, wp_u32 bytes, wp_u64 *landed) {
    wp_u32 head = in_granule(src, bytes);
    bulk_load(stage, src, head, landed);
    if (head < bytes)
        bulk_load(stage + head, src + head, bytes - head, landed);
}

__device__ __forceinline__ void bulk_store_mapped(wp_addr dst, const unsigned char *stage, wp_u32 bytes) {
    wp_u32 head = in_granule(dst, bytes);
    bulk_store(dst, stage, head);
    if (head < bytes)
        bulk_store(dst + head, stage + head, bytes - head);
}

// Orders this thread's earlier accesses before the copies that it starts from here on.
__device__ __forceinline__ void bulk_fence_proxies() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Returns when every store of this thread has read its stage.
__device__ __forceinline__ void bulk_await_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Returns when every store of this thread is done.
__device__ __forceinline__ void bulk_await_stored() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif // __CUDA_ARCH__ >= 900

} // namespace wp

#endif // WARPOOL_DEVICE_BULK_CUH
