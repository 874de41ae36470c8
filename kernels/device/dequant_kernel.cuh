/* dequant_kernel.cuh: from codes with scales to values, a slot of 16 bytes of values a thread. */
#ifndef WARPOOL_DEQUANT_KERNEL_CUH
#define WARPOOL_DEQUANT_KERNEL_CUH

#include "quant_kernel.cuh"

namespace wp {

/*
 * The codes of a whole slot. Of 6 bits, those of 4 or 8 elements lie in two words; the second is not
 * read where it holds none of them.
 */
template <class Q, int V>
__device__ __forceinline__ u64 load_codes(const wp_quantize &a, u64 row, u64 slot) {
    constexpr int BYTES = V * Q::SIZE / 8;
    const u64 offset = slot * BYTES, at = a.codes + row * a.codes_pitch + offset;
    if constexpr (Q::SIZE == 6) {
        const u32 *words = (const u32 *)(at - offset % 4);
        const u32 low = __ldcg(words), off = (u32)(offset % 4) * 8;
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

/* Those of any slot that has values, a byte at a time. */
template <class Q, int V>
__device__ __forceinline__ u64 load_part_codes(const wp_quantize &a, u64 row, u64 slot) {
    const u64 at = a.codes + row * a.codes_pitch + slot * (V * Q::SIZE / 8);
    const u32 here = (u32)min(a.cols - slot * V, (u64)V), bytes = (here * Q::SIZE + 7) / 8;
    u64 codes = 0;
#pragma unroll 1
    for (u32 i = 0; i < bytes; i++) codes |= (u64)((const u8 *)at)[i] << (8 * i);
    return codes;
}

/* As many of a slot's values as there are `left`. */
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

constexpr int DEQUANT_UNROLL = 2; /* slots a thread: 4 were 2 to 10 % slower, one 1 to 8 % (measured) */

/* The scale as a number: of the kinds that is_quantization() lets a format have. */
template <class Q>
__device__ __forceinline__ float load_scale(const wp_quantize &a, u64 place, float tensor) {
    if (INTEGER<Q> || (Q::SIZE == 8 && a.kind == WP_SCALE_F32)) return ((const float *)a.scales)[place];
    const u32 stored = ((const u8 *)a.scales)[place];
    return scale_value(SAME<Q, E2M1> ? a.kind : (u32)WP_SCALE_E8M0, stored, tensor);
}

/* As many threads as a multiprocessor holds. */
template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, MOST_THREADS / QUANT_THREADS) dequant_kernel(const wp_quantize a, const Slots slots) {
    constexpr int V = SLOT<S>, U = DEQUANT_UNROLL;
    const Place first = first_place(slots, U);
    const float tensor = a.tensor_scale != 0 ? *(const float *)a.tensor_scale : 0.0f;
    Place at = first;
    const auto place = [&](int u) { return at = u == 0 ? first : next_place(slots, at); };
    struct Slot {
        u64 codes;
        float scale;
        i32 zero;
    } x[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        const Place p = place(u);
        x[u] = {};
        if (!has_values<S>(a, p.row, p.slot)) continue;
        const u64 scale = scale_place(slots, a.scales_pitch, p);
        if (slots.aligned.whole) x[u].codes = load_codes<Q, V>(a, p.row, p.slot);
        x[u].scale = load_scale<Q>(a, scale, tensor);
        if (INTEGER<Q> && a.zeros != 0) x[u].zero = ((const signed char *)a.zeros)[scale];
    }
    const auto values = [&](int u, const Slot &s, bool whole) {
        const Place p = place(u);
        if (!has_values<S>(a, p.row, p.slot)) return;
        float y[V];
        decode<Q>(whole ? s.codes : load_part_codes<Q, V>(a, p.row, p.slot), s.zero, y);
        Vector<typename S::Bits, V> v;
#pragma unroll
        for (int i = 0; i < V; i += 2) {
            const u32 bits[2] = {__float_as_uint(y[i] * s.scale), __float_as_uint(y[i + 1] * s.scale)};
            if constexpr (SAME<S, F32>) {
                v.v[i] = y[i] * s.scale == y[i] * s.scale ? bits[0] : F32::QNAN;
                v.v[i + 1] = y[i + 1] * s.scale == y[i + 1] * s.scale ? bits[1] : F32::QNAN;
            } else {
                Hardware<F32, S>::two(bits, v.v + i, false);
            }
        }
        const u64 to = a.values + p.row * a.values_pitch + p.slot * 16;
        if (whole) {
            store_streaming(to, v);
        } else {
            store_part<S>(to, bits_as<Words<typename S::Bits, V>>(v), a.cols - p.slot * V, slots.aligned.values);
        }
    };
    if (slots.aligned.whole) {
        in_turn<false>(x, [&](int u, const Slot &s) { values(u, s, true); });
    } else {
        in_turn<true>(x, [&](int u, const Slot &s) { values(u, s, false); });
    }
}

}  // namespace wp

#endif /* WARPOOL_DEQUANT_KERNEL_CUH */
