/* quantize.cu: formats with scales: the entry points. */
#include "device/dequant_kernel.cuh"
#include "device/quant_span.cuh"

namespace wp {

/* quantize_table.cu */
int queue_jobs(const wp_quantize &a, bool quantize, void *stream);

namespace {

template <class S, class Q>
int queue_groups(const wp_quantize &a, void *stream) {
    const Job job = groups_job<S, Q>(a);
    if (job.slots.spans) {
        if constexpr (SAME<Q, E2M1> || INTEGER<Q>) {
            if (a.zeros != 0 || a.kind == WP_SCALE_E4M3)
                return launch<span_kernel<S, Q, true>>(job.blocks, QUANT_THREADS, stream, job.a, job.slots);
        }
        return launch<span_kernel<S, Q, false>>(job.blocks, QUANT_THREADS, stream, job.a, job.slots);
    }
    return launch<group_kernel<S, Q>>(job.blocks, QUANT_THREADS, stream, job.a, job.slots);
}

template <class S, class Q>
int queue_rows(const wp_quantize &a, void *stream) {
    const Job job = rows_job<S, Q>(a);
    return launch<row_kernel<S, Q>>(job.blocks, QUANT_THREADS, stream, job.a, job.lanes, job.slots.aligned);
}

template <class S, class Q>
int queue_squares(const wp_quantize &a, void *stream) {
    const u64 across = (a.cols + 127) / 128, down = (a.rows + 127) / 128;
    if (across > 0x7FFFFFFF || down > 0x7FFFFFFF / across) return cudaErrorInvalidValue;
    return launch<square_kernel<S, Q>>(across * down, QUANT_THREADS, stream, a, (u32)across, alignment_of<S, Q>(a));
}

template <class S, class Q>
int queue_quantize(const wp_quantize &a, void *stream) {
    if constexpr (SAME<Q, E4M3> || SAME<Q, E5M2>) {
        if (a.granularity == WP_PER_SQUARE) return queue_squares<S, Q>(a, stream);
    }
    if constexpr (Q::SIZE == 8 || INTEGER<Q>) {
        if (a.granularity == WP_PER_ROW) return queue_rows<S, Q>(a, stream);
    }
    return queue_groups<S, Q>(a, stream);
}

template <class S, class Q>
int queue_dequantize(const wp_quantize &a, void *stream) {
    const Job job = values_job<S, Q>(a);
    return launch<dequant_kernel<S, Q>>(job.blocks, QUANT_THREADS, stream, job.a, job.slots);
}

template <class Visit>
int with_both(const wp_quantize &a, bool quantize, void *stream, const Visit &visit) {
    if (a.jobs != 0) return queue_jobs(a, quantize, stream);
    if (!is_quantization(a, quantize)) return cudaErrorInvalidValue;
    if (a.rows == 0 || a.cols == 0) return 0;
    return with_values(a.type, cudaErrorInvalidValue, [&](auto s) {
        return with_codes(a.format, cudaErrorInvalidValue, [&](auto q) { return visit(s, q); });
    });
}

}  // namespace
}  // namespace wp

extern "C" int wp_cuda_quantize(const wp_quantize *args, void *stream) {
    using namespace wp;
    return with_both(*args, true, stream, [&](auto s, auto q) { return queue_quantize<decltype(s), decltype(q)>(*args, stream); });
}

extern "C" int wp_cuda_dequantize(const wp_quantize *args, void *stream) {
    using namespace wp;
    return with_both(*args, false, stream, [&](auto s, auto q) { return queue_dequantize<decltype(s), decltype(q)>(*args, stream); });
}
