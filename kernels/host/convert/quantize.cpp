/* quantize.cpp: formats with scales on the host device. */
#include "device/philox.cuh"
#include "device/quant.cuh"
#include "device/slots.cuh"

namespace wp {
namespace {

/* A rectangle of elements that share a scale, and its place among the scales. */
struct Part {
    u64 row, rows, col, cols;
    u64 scale;
};

u64 least(u64 a, u64 b) { return a < b ? a : b; }

/* Calls visit(part) for every part of the tensor. */
template <class Visit>
void every_part(const wp_quantize &a, const Visit &visit) {
    const u64 square = 128;
    const u64 high = a.granularity == WP_PER_SQUARE ? square : 1;
    const u64 wide = a.granularity == WP_PER_SQUARE ? square : a.granularity == WP_PER_GROUP ? a.group : a.cols;
    for (u64 row = 0; row < a.rows; row += high) {
        for (u64 col = 0; col < a.cols; col += wide) {
            const u64 at = a.granularity == WP_PER_TENSOR
                               ? 0
                               : scale_index(a.layout, a.scales_pitch, row / high, col / wide);
            visit(Part{row, least(high, a.rows - row), col, least(wide, a.cols - col), at});
        }
    }
}

template <class S>
u32 wide(const wp_quantize &a, u64 row, u64 col) {
    return widen<S, F32>(((const typename S::Bits *)(a.values + row * a.values_pitch))[col]);
}

/* The magnitudes of the smallest value, at most 0, and of the largest, at least 0. */
struct Ends {
    u32 low, high;
};

u32 canonical(u32 amax) { return amax > F32::OVERFLOW ? F32::QNAN : amax; }

template <class S>
Ends ends_of(const wp_quantize &a, const Part &p) {
    Ends ends = {0, 0};
    for (u64 row = p.row; row < p.row + p.rows; row++) {
        for (u64 col = p.col; col < p.col + p.cols; col++) {
            const u32 x = wide<S>(a, row, col), size = x & 0x7FFFFFFF;
            u32 &end = (x & F32::SIGN) != 0 ? ends.low : ends.high;
            end = size > end ? size : end;
        }
    }
    return ends;
}

/* Codes come in order, so the first code of a byte sets it. */
template <class Q>
void put(u8 *row, u64 col, u32 code) {
    if constexpr (Q::SIZE == 8) {
        row[col] = (u8)code;
    } else {
        const u64 bit = col * Q::SIZE;
        u8 *at = row + bit / 8;
        const u32 shift = (u32)(bit % 8), placed = code << shift;
        *at = (u8)(shift == 0 ? placed : *at | placed);
        if (shift + Q::SIZE > 8) at[1] = (u8)(placed >> 8);
    }
}

template <class Q>
u32 take(const u8 *row, u64 col) {
    if constexpr (Q::SIZE == 8) return row[col];
    const u64 bit = col * Q::SIZE;
    const u32 shift = (u32)(bit % 8);
    u32 both = row[bit / 8];
    if (shift + Q::SIZE > 8) both |= (u32)row[bit / 8 + 1] << 8;
    return both >> shift & ((1u << Q::SIZE) - 1);
}

template <class S, class Q>
void encode(const wp_quantize &a, const Part &p, const Scale &scale) {
    const bool stochastic = a.rounding == WP_STOCHASTIC;
    for (u64 row = p.row; row < p.row + p.rows; row++) {
        u8 *codes = (u8 *)(a.codes + row * a.codes_pitch);
        for (u64 col = p.col; col < p.col + p.cols; col++) {
            const float y = bits_as<float>(wide<S>(a, row, col)) * scale.inverse;
            const u32 random = stochastic ? philox_half(a.seed, row * a.cols + col) : 0;
            u32 code;
            if constexpr (INTEGER<Q>) {
                const i32 lowest = a.zeros != 0 ? -Q::HIGH - 1 : -Q::HIGH;
                code = integer_code<Q>(y, scale.zero, lowest, stochastic, random);
            } else {
                code = stochastic ? code_of<Q>(y, Stochastic(), random) : code_of<Q>(y, Nearest(), 0);
            }
            put<Q>(codes, col, code);
        }
    }
}

void store_scale(const wp_quantize &a, const Part &p, const Scale &scale) {
    if (a.kind == WP_SCALE_F32) {
        ((u32 *)a.scales)[p.scale] = scale.stored;
    } else {
        ((u8 *)a.scales)[p.scale] = (u8)scale.stored;
    }
    if (a.zeros != 0) ((signed char *)a.zeros)[p.scale] = (signed char)scale.zero;
}

/* The scales of a tiled layout that belong to no element. */
void pad_scales(const wp_quantize &a) {
    const u64 groups = (a.cols + a.group - 1) / a.group;
    for (u64 r = 0; r < rounded_up(a.rows, 128); r++)
        for (u64 c = r < a.rows ? groups : 0; c < a.scales_pitch; c++)
            ((u8 *)a.scales)[scale_index(a.layout, a.scales_pitch, r, c)] = 0;
}

template <class S, class Q>
void quantize(const wp_quantize &a) {
    const bool given = a.granularity == WP_PER_TENSOR;
    const float tensor = a.tensor_scale != 0 ? *(const float *)a.tensor_scale : 0.0f;
    u32 most = 0;
    every_part(a, [&](const Part &p) {
        const Ends ends = ends_of<S>(a, p);
        const u32 amax = ends.low > ends.high ? ends.low : ends.high;
        most = amax > most ? amax : most;
        Scale scale;
        if (given) {
            scale = scale_given(*(const float *)a.scales);
        } else {
            scale = scale_of<Q>(a.kind, amax, tensor);
            if constexpr (INTEGER<Q>) {
                if (a.zeros != 0) scale = scale_between<Q>(ends.low, ends.high);
            }
            store_scale(a, p, scale);
        }
        encode<S, Q>(a, p, scale);
    });
    if (a.layout == WP_SCALES_TILED && a.granularity == WP_PER_GROUP) pad_scales(a);
    u32 *place = (u32 *)a.amax;
    most = canonical(most);
    if (place != nullptr && most > *place) *place = most;
}

template <class S, class Q>
void dequantize(const wp_quantize &a) {
    const float tensor = a.tensor_scale != 0 ? *(const float *)a.tensor_scale : 0.0f;
    every_part(a, [&](const Part &p) {
        const u32 stored = a.kind == WP_SCALE_F32 ? ((const u32 *)a.scales)[p.scale] : ((const u8 *)a.scales)[p.scale];
        const i32 zero = a.zeros != 0 ? ((const signed char *)a.zeros)[p.scale] : 0;
        const float scale = scale_value(a.kind, stored, tensor);
        for (u64 row = p.row; row < p.row + p.rows; row++) {
            const u8 *codes = (const u8 *)(a.codes + row * a.codes_pitch);
            typename S::Bits *values = (typename S::Bits *)(a.values + row * a.values_pitch);
            for (u64 col = p.col; col < p.col + p.cols; col++) {
                const float y = value_of<Q>(take<Q>(codes, col), zero) * scale;
                values[col] = rounded<S>(y == y ? bits_as<u32>(y) : F32::QNAN, Nearest(), false, 0);
            }
        }
    });
}

template <class Visit>
int with_both(const wp_quantize &a, const Visit &visit) {
    /* If rows have no elements, none is visited. */
    if (a.rows == 0 || a.cols == 0) return WP_OK;
    return with_values(a.type, WP_INVALID, [&](auto s) {
        return with_codes(a.format, WP_INVALID, [&](auto q) {
            visit(s, q);
            return WP_OK;
        });
    });
}

/* Calls one(tensor) for every tensor of a table, each with the launch's arguments. */
template <class One>
int every_job(const wp_quantize &t, bool quantize, const One &one) {
    if (!is_table(t, quantize)) return WP_INVALID;
    for (u64 i = 0; i < t.rows; i++) {
        wp_quantize a = ((const wp_quantize_job *)t.jobs)[i].tensor;
        a.seed = t.seed + i;
        a.rounding = t.rounding;
        a.amax = t.amax != 0 ? t.amax + 4 * i : 0;
        const int status = one(&a);
        if (status != WP_OK) return status;
    }
    return WP_OK;
}

template <class S, class Q>
Job job_of(const wp_quantize &a, bool quantize) {
    if (!quantize) return values_job<S, Q>(a);
    return a.granularity == WP_PER_ROW ? rows_job<S, Q>(a) : groups_job<S, Q>(a);
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_quantize(const wp_quantize *args) {
    using namespace wp;
    if (args->jobs != 0) return every_job(*args, true, wp_host_quantize);
    if (!is_quantization(*args, true)) return WP_INVALID;
    return with_both(*args, [&](auto s, auto q) { quantize<decltype(s), decltype(q)>(*args); });
}

extern "C" int wp_host_dequantize(const wp_quantize *args) {
    using namespace wp;
    if (args->jobs != 0) return every_job(*args, false, wp_host_dequantize);
    if (!is_quantization(*args, false)) return WP_INVALID;
    return with_both(*args, [&](auto s, auto q) { dequantize<decltype(s), decltype(q)>(*args); });
}

extern "C" int wp_quantize_plan(const wp_quantize *args, wp_u32 quantize, wp_quantize_job *job, wp_u64 *blocks) {
    using namespace wp;
    const bool forth = quantize != 0;
    if (!is_quantization(*args, forth) || !is_in_tables(*args, forth)) return WP_INVALID;
    *job = {*args, {}};
    *blocks = 0;
    return with_both(*args, [&](auto s, auto q) {
        const Job made = job_of<decltype(s), decltype(q)>(*args, forth);
        memcpy(job, &made, sizeof(made));
        *blocks = made.blocks;
    });
}
