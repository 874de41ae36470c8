/* quantize.cu: formats with scales: the entry points. */
#include "device/dequant_kernel.cuh"
#include "device/quant_kernel.cuh"

namespace wp {
namespace {

bool all_rows_aligned(u64 addr, u64 pitch, u64 rows, u64 to) { return addr % to == 0 && (rows <= 1 || pitch % to == 0); }

template <class S>
bool values_aligned(const wp_quantize &a) {
    return all_rows_aligned(a.values, a.values_pitch, a.rows, 16);
}

template <class S, class Q>
bool codes_aligned(const wp_quantize &a) {
    return all_rows_aligned(a.codes, a.codes_pitch, a.rows, Q::SIZE == 6 ? 4 : SLOT<S> * Q::SIZE / 8);
}

/* Rows without gaps between them or between their groups, as one. */
template <class S, class Q>
wp_quantize flattened(const wp_quantize &a) {
    wp_quantize flat = a;
    const bool tensor = a.granularity == WP_PER_TENSOR;
    if (!tensor && a.granularity != WP_PER_GROUP) return flat;
    const u64 unit = tensor ? SLOT<S> : a.group;
    const bool packed = a.cols % unit == 0 && a.values_pitch == a.cols * (S::SIZE / 8) &&
                        a.codes_pitch * 8 == a.cols * Q::SIZE;
    const bool scales = tensor || (a.layout == WP_SCALES_BY_ROW && a.scales_pitch == a.cols / unit);
    if (!packed || !scales) return flat;
    flat.cols *= a.rows;
    flat.rows = 1;
    return flat;
}

template <class S, class Q>
Alignment alignment_of(const wp_quantize &a) {
    const bool values = values_aligned<S>(a), codes = codes_aligned<S, Q>(a);
    return {values, codes, values && codes && a.cols % (Q::SIZE == 6 ? 16 : SLOT<S>) == 0};
}

u32 power_of(u64 n) {
    u32 power = 0;
    while (1ull << power < n) power++;
    return power;
}

/* Scales of `high` rows and `width` elements each, all if that is 0; `groups` of them a row, or in all slots. */
template <class S, class Q>
Slots slots_of(const wp_quantize &a, u64 rows, u64 slots, u64 high, u64 width) {
    Slots s = {rows, slots, QUANT_THREADS / slots, QUANT_THREADS % slots, Divisor(2), false, 63, 63, 1, 1, false,
               alignment_of<S, Q>(a)};
    s.narrow = rows > 1 && slots > 1 && rows < 0x7FFFF000 / slots;
    if (s.narrow) s.by_row = Divisor((u32)slots);
    if (high != 0) s.row_shift = power_of(high);
    if (width != 0) s.shift = power_of(width / SLOT<S>);
    if (a.layout == WP_SCALES_BY_ROW) s.scale_row = a.scales_pitch;
    if (a.layout == WP_SCALES_BY_COLUMN) s.scale_slot = a.scales_pitch;
    s.tiled = a.granularity == WP_PER_GROUP && a.layout == WP_SCALES_TILED;
    return s;
}

u64 blocks_of(const Slots &s, u32 unroll) {
    const u64 each = QUANT_THREADS * unroll;
    if (s.rows > ~0ull / s.per_row - each) return ~0ull;
    return (s.rows * s.per_row + each - 1) / each;
}

template <class S, class Q>
int queue_groups(const wp_quantize &given, void *stream) {
    const wp_quantize a = flattened<S, Q>(given);
    const bool tensor = a.granularity == WP_PER_TENSOR, tiled = !tensor && a.layout == WP_SCALES_TILED;
    const u64 width = tensor ? SLOT<S> : a.group;
    const u64 groups = tiled ? a.scales_pitch : (a.cols + width - 1) / width;
    const Slots slots = slots_of<S, Q>(a, tiled ? rounded_up(a.rows, 128) : a.rows, groups * (width / SLOT<S>), 1, width);
    return launch<group_kernel<S, Q>>(blocks_of(slots, GROUP_UNROLL), QUANT_THREADS, stream, a, slots);
}

template <class S, class Q>
int queue_rows(const wp_quantize &a, void *stream) {
    const u64 slots = (a.cols + SLOT<S> - 1) / SLOT<S>;
    u32 lanes = 32;
    while (lanes < QUANT_THREADS && slots > lanes * ROW_HELD) lanes *= 2;
    const u64 at_once = QUANT_THREADS / lanes, blocks = (a.rows + at_once - 1) / at_once;
    return launch<row_kernel<S, Q>>(blocks, QUANT_THREADS, stream, a, lanes, alignment_of<S, Q>(a));
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
int queue_dequantize(const wp_quantize &given, void *stream) {
    const wp_quantize a = flattened<S, Q>(given);
    const u64 high = a.granularity == WP_PER_SQUARE ? 128 : a.granularity == WP_PER_TENSOR ? 0 : 1;
    const u64 width = a.granularity == WP_PER_SQUARE ? 128 : a.granularity == WP_PER_GROUP ? a.group : 0;
    const Slots slots = slots_of<S, Q>(a, a.rows, (a.cols + SLOT<S> - 1) / SLOT<S>, high, width);
    return launch<dequant_kernel<S, Q>>(blocks_of(slots, DEQUANT_UNROLL), QUANT_THREADS, stream, a, slots);
}

template <class Visit>
int with_both(const wp_quantize &a, bool quantize, const Visit &visit) {
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
    return with_both(*args, true, [&](auto s, auto q) { return queue_quantize<decltype(s), decltype(q)>(*args, stream); });
}

extern "C" int wp_cuda_dequantize(const wp_quantize *args, void *stream) {
    using namespace wp;
    return with_both(*args, false, [&](auto s, auto q) { return queue_dequantize<decltype(s), decltype(q)>(*args, stream); });
}
