/*
 * quant_table.cuh: many tensors with scales in one launch.
 *
 * A thread block copies its tensor's job into shared memory, then works as if that tensor were alone.
 */
#ifndef WARPOOL_QUANT_TABLE_CUH
#define WARPOOL_QUANT_TABLE_CUH

#include "dequant_kernel.cuh"
#include "quant_span.cuh"

namespace wp {

/* Calls body(job, block) with the job of the block's place. */
template <class Body>
__device__ __forceinline__ void with_job(const wp_quantize &t, const Body &body) {
    __shared__ alignas(16) u32 words[sizeof(Job) / 4];
    const wp_quantize_place place = ((const wp_quantize_place *)t.places)[blockIdx.x];
    const u32 *from = (const u32 *)(t.jobs + place.job * sizeof(Job));
    for (u32 i = threadIdx.x; i < sizeof(Job) / 4; i += QUANT_THREADS) words[i] = from[i];
    __syncthreads();
    if (threadIdx.x == 0) {
        wp_quantize &a = ((Job *)words)->a;
        a.seed = t.seed + place.job;
        a.rounding = t.rounding;
        a.amax = t.amax != 0 ? t.amax + 4ull * place.job : 0;
    }
    __syncthreads();
    body(*(const Job *)words, place.block);
}

template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, GROUP_BLOCKS<S, Q> < 3 ? GROUP_BLOCKS<S, Q> : 3) group_table_kernel(const wp_quantize t) {
    begin_in_order();
    with_job(t, [](const Job &job, u32 block) {
        if (job.slots.spans) {
            quantize_span<S, Q, false>(job.a, job.slots, block);
        } else {
            quantize_groups<S, Q>(job.a, job.slots, block);
        }
    });
}

template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, SHORT<S, Q> ? 3 : 2) row_table_kernel(const wp_quantize t) {
    begin_in_order();
    with_job(t, [](const Job &job, u32 block) { quantize_rows<S, Q>(job.a, job.lanes, job.slots.aligned, block); });
}

template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, DEQUANT_BLOCKS * 3 / 4) dequant_table_kernel(const wp_quantize t) {
    begin_in_order();
    with_job(t, [](const Job &job, u32 block) { dequantize<S, Q>(job.a, job.slots, block); });
}

}  // namespace wp

#endif /* WARPOOL_QUANT_TABLE_CUH */
