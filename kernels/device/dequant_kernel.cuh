/*
 * dequant_kernel.cuh: from codes with scales to values, one slot of 16 bytes of values per thread.
 */
#ifndef WARPOOL_DEQUANT_KERNEL_CUH
#define WARPOOL_DEQUANT_KERNEL_CUH

#include "quant_kernel.cuh"

namespace wp {

/*
 * The codes of a whole slot. With 6 bits, those of 4 or 8 elements are in two words, and a row is a whole
 * number of words. The second word is not read if it holds none of them.
 */
template <class Q, int V>
__device__ __forceinline__ u64 load_codes(u64 at) {
    constexpr int BYTES = V * Q::SIZE / 8;
    if constexpr (Q::SIZE == 6) {
        const u32 *words = (const u32 *)(at & ~3ull);
        const u32 low = __ldcg(words), off = (u32)(at & 3) * 8;
        const u32 high = off + BYTES * 8 > 32 ? __ldcg(words + 1) : 0;
        return (low | (u64)high << 32) >> off;
    } else if constexpr (BYTES == 8) {
        const uint2 two = __ldcg((const uint2 *)at);
        return two.x | (u64)two.y << 32;
    } else if constexpr (BYTES == 4) {
        return __ldcg((const u32 *)at);
    } else {
        return __ldcg((const u16 *)at);
    }
}

/* The codes of any slot that has values, one byte at a time. */
template <class Q, int V>
__device__ __forceinline__ u64 load_part_codes(const wp_quantize &a, u64 row, u64 slot) {
    const u64 at = a.codes + row * a.codes_pitch + slot * (V * Q::SIZE / 8);
    const u32 here = (u32)min(a.cols - slot * V, (u64)V), bytes = (here * Q::SIZE + 7) / 8;
    u64 codes = 0;
#pragma unroll 1
    for (u32 i = 0; i < bytes; i++) codes |= (u64)((const u8 *)at)[i] << (8 * i);
    return codes;
}

/* Stores the `left` values of a slot that is not whole. */
template <class S>
__device__ __forceinline__ void store_part(u64 to, Words<typename S::Bits, SLOT<S>> x, u64 left, bool aligned) {
    constexpr u32 V = SLOT<S>;
    if (aligned && left >= V) return store_streaming(to, bits_as<Vector<typename S::Bits, V>>(x));
    const u32 here = left < V ? (u32)left : V;
#pragma unroll 1
    for (u32 i = 0; i < here; i++) {
        ((typename S::Bits *)to)[i] = (typename S::Bits)x.w[0];
#pragma unroll
        for (int k = 0; k < 3; k++) x.w[k] = S::SIZE == 32 ? x.w[k + 1] : __funnelshift_r(x.w[k], x.w[k + 1], 16);
        if (S::SIZE == 16) x.w[3] >>= 16;
    }
}

/* The stored bits of a scale. */
template <class Q>
__device__ __forceinline__ u32 load_scale(const wp_quantize &a, u64 place) {
    if (INTEGER<Q> || (Q::SIZE == 8 && a.kind == WP_SCALE_F32)) return ((const u32 *)a.scales)[place];
    return ((const u8 *)a.scales)[place];
}

/* A stored scale as a number, of the kinds that is_quantization() allows for the format. */
template <class Q>
__device__ __forceinline__ float scale_from(const wp_quantize &a, u32 stored, float tensor) {
    if (INTEGER<Q> || (Q::SIZE == 8 && a.kind == WP_SCALE_F32)) return __uint_as_float(stored);
    return scale_value(SAME<Q, E2M1> ? a.kind : (u32)WP_SCALE_E8M0, stored, tensor);
}

/* V scaled values, rounded. */
template <class S, class Q, int V>
__device__ __forceinline__ Vector<typename S::Bits, V> values_of(u64 codes, i32 zero, float scale) {
    float y[V];
    decode<Q>(codes, zero, y);
    Vector<typename S::Bits, V> v;
#pragma unroll
    for (int i = 0; i < V; i += 2) {
        const float first = y[i] * scale, second = y[i + 1] * scale;
        if constexpr (SAME<S, F32>) {
            v.v[i] = first == first ? __float_as_uint(first) : F32::QNAN;
            v.v[i + 1] = second == second ? __float_as_uint(second) : F32::QNAN;
        } else {
            const u32 bits[2] = {__float_as_uint(first), __float_as_uint(second)};
            Hardware<F32, S>::two(bits, v.v + i, false);
        }
    }
    return v;
}

template <class Q>
__device__ __forceinline__ i32 load_zero(const wp_quantize &a, u64 place) {
    return INTEGER<Q> && a.zeros != 0 ? ((const signed char *)a.zeros)[place] : 0;
}

/*
 * The slots of a thread, all whole. At a copy's speed, the schedulers of an H200 issue about 140 instructions per
 * slot of f32, 170 of bf16, so places are counted in 32 bits from the block's first. All loads are in one stretch
 * of code without a branch, before any is used: threads after the end load the block's last slot.
 */
template <class S, class Q>
__device__ __forceinline__ void dequantize_whole(const wp_quantize &a, const Slots &slots, const Place &first, u32 block, float tensor) {
    constexpr int V = SLOT<S>, U = DEQUANT_UNROLL;
    constexpr u32 CODES = V * Q::SIZE / 8, EACH = QUANT_THREADS * U;
    const u64 left = slots.rows * slots.per_row - (u64)block * EACH;
    const u32 last = left < EACH ? (u32)left - 1 : EACH - 1;
    const Window window = window_of<S, Q>(a, slots, first);
    u32 on[U], stored[U];
    Near at[U];
    u64 place[U], codes[U];
    i32 zero[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        on[u] = min(threadIdx.x + u * QUANT_THREADS, last);
        at[u] = window.near(slots, on[u]);
        place[u] = scale_place(slots, a.scales_pitch, window.place(first, at[u]));
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        codes[u] = load_codes<Q, V>(window.codes + at[u].row * slots.codes_skip + on[u] * CODES);
        stored[u] = load_scale<Q>(a, place[u]);
        zero[u] = load_zero<Q>(a, place[u]);
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        const auto values = values_of<S, Q, V>(codes[u], zero[u], scale_from<Q>(a, stored[u], tensor));
        const u64 to = window.values + at[u].row * slots.values_skip + on[u] * 16;
        if (threadIdx.x + u * QUANT_THREADS <= last) store_streaming(to, values);
    }
}

template <class S, class Q>
__device__ __forceinline__ void dequantize(const wp_quantize &a, const Slots &slots, u32 block) {
    constexpr int V = SLOT<S>;
    const Place first = first_of(slots, block, DEQUANT_UNROLL);
    const float tensor = a.tensor_scale != 0 ? *(const float *)a.tensor_scale : 0.0f;
    if (slots.aligned.whole) return dequantize_whole<S, Q>(a, slots, first, block, tensor);
#pragma unroll 1
    for (u32 u = 0; u < DEQUANT_UNROLL; u++) {
        const Place p = place_of(slots, first, threadIdx.x + u * QUANT_THREADS);
        if (!has_values<S>(a, p.row, p.slot)) return;
        const u64 place = scale_place(slots, a.scales_pitch, p);
        const float scale = scale_from<Q>(a, load_scale<Q>(a, place), tensor);
        const auto v = values_of<S, Q, V>(load_part_codes<Q, V>(a, p.row, p.slot), load_zero<Q>(a, place), scale);
        const u64 to = a.values + p.row * a.values_pitch + p.slot * 16;
        store_part<S>(to, bits_as<Words<typename S::Bits, V>>(v), a.cols - p.slot * V, slots.aligned.values);
    }
}

/* As many threads as a multiprocessor holds. */
constexpr unsigned DEQUANT_BLOCKS = MOST_THREADS / QUANT_THREADS;

template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, bounded(DEQUANT_BLOCKS, QUANT_THREADS)) dequant_kernel(const wp_quantize a, const Slots slots) {
    begin_in_order();
    dequantize<S, Q>(a, slots, blockIdx.x);
}

}  // namespace wp

#endif /* WARPOOL_DEQUANT_KERNEL_CUH */
