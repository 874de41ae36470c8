/* quantize_table.cu: many tensors with scales in one launch. */
#include "device/quant_table.cuh"

namespace wp {

int queue_jobs(const wp_quantize &t, bool quantize, void *stream) {
    if (!is_table(t, quantize)) return cudaErrorInvalidValue;
    if (t.rows == 0) return 0;
    return with_values(t.type, cudaErrorInvalidValue, [&](auto s) {
        return with_codes(t.format, cudaErrorInvalidValue, [&](auto q) -> int {
            using S = decltype(s);
            using Q = decltype(q);
            if constexpr (IN_TABLES<Q>) {
                if (!quantize) return launch<dequant_table_kernel<S, Q>>(t.cols, QUANT_THREADS, stream, t);
                if constexpr (Q::SIZE == 8) {
                    if (t.granularity == WP_PER_ROW) return launch<row_table_kernel<S, Q>>(t.cols, QUANT_THREADS, stream, t);
                }
                return launch<group_table_kernel<S, Q>>(t.cols, QUANT_THREADS, stream, t);
            }
            return cudaErrorInvalidValue;
        });
    });
}

}  // namespace wp
