/*
 * quant_span.cuh: groups of whole slots to codes, the usual case: one span of a row per warp.
 *
 * A span is as many adjacent slots as the lanes of a warp hold in registers, so that the place of all of
 * them is computed once and a warp's scales are adjacent.
 */
#ifndef WARPOOL_QUANT_SPAN_CUH
#define WARPOOL_QUANT_SPAN_CUH

#include "quant_kernel.cuh"

namespace wp {

template <Scaled SCALED>
struct As {
    static constexpr Scaled VALUE = SCALED;
};

/* A warp's share of a tensor: as many adjacent slots of a row as its lanes hold in registers. */
struct Span {
    u32 row, slot; /* of the first slot */
    u32 there, all; /* number of its slots with values, and of all its slots; padding has no values */
};

template <class S>
__device__ __forceinline__ Span span_of(const wp_quantize &a, const Slots &slots, u32 number) {
    /* A quotient by 1 is 0, as with a single row. */
    const u32 row = slots.by_row.d == 1 && slots.rows > 1 ? number : slots.by_row.quotient(number);
    const u32 slot = (number - row * slots.by_row.d) * SPAN;
    const u32 have = row < (u32)a.rows ? (u32)(a.cols / SLOT<S>) : 0, all = row < (u32)slots.rows ? (u32)slots.per_row : 0;
    return {row, slot, min(max(have, slot) - slot, SPAN), min(max(all, slot) - slot, SPAN)};
}

/* The larger of two lanes' words: of `second` in the lanes whose bit `d` is set, of `first` in the others. */
template <class S, bool SIGNED>
__device__ __forceinline__ u32 traded(u32 first, u32 second, u32 d) {
    const bool set = (threadIdx.x & d) != 0;
    const u32 kept = set ? second : first, given = set ? first : second;
    return larger<S, SIGNED>(kept, __shfl_xor_sync(0xFFFFFFFF, given, d));
}

/*
 * From the largest words of a thread's four slots to the largest words of their groups. Lane i of a group gets
 * the result of slot i % 4; if a group has two lanes, the results of slots i and i + 2. In 16-bit formats two
 * slots share a word. Each lane passes on what it does not keep, so that few words are exchanged.
 */
template <class S, bool SIGNED>
__device__ __forceinline__ void largest_of_groups(const u32 (&most)[4], u32 lanes, u32 (&own)[2]) {
    u32 all;
    if constexpr (S::SIZE == 32) {
        all = traded<S, SIGNED>(traded<S, SIGNED>(most[0], most[1], 1), traded<S, SIGNED>(most[2], most[3], 1), 2);
    } else {
        const auto folded = [&](u32 x, u32 y) { return larger<S, SIGNED>(__byte_perm(x, y, 0x5410), __byte_perm(x, y, 0x7632)); };
        const u32 first = folded(most[0], most[1]), second = folded(most[2], most[3]);
        all = lanes == 2 ? first : traded<S, SIGNED>(first, second, 2);
        all = larger<S, SIGNED>(all, __shfl_xor_sync(0xFFFFFFFF, all, 1));
        own[1] = lanes == 2 ? larger<S, SIGNED>(second, __shfl_xor_sync(0xFFFFFFFF, second, 1)) : 0;
    }
#pragma unroll
    for (u32 d = 4; d < 32; d *= 2)
        if (d < lanes) all = larger<S, SIGNED>(all, __shfl_xor_sync(0xFFFFFFFF, all, d));
    own[0] = all;
}

/* This lane's half of a word of 16-bit formats, as an upper half. */
template <class S>
__device__ __forceinline__ u32 own_half(u32 word) {
    return S::SIZE == 32 ? word : __byte_perm(word, 0, threadIdx.x & 1 ? 0x3244 : 0x1044);
}

/* Whether the scales are F32s; otherwise they are bytes. */
template <class Q>
__device__ __forceinline__ bool scales_are_f32(const wp_quantize &a) {
    return INTEGER<Q> || (Q::SIZE == 8 && a.kind == WP_SCALE_F32);
}

/*
 * The index of the scale of the group of a span's slot `on`; in 32 bits where spans_pay() ensures
 * that they suffice.
 */
__device__ __forceinline__ u64 span_scale_place(const wp_quantize &a, const Slots &slots, const Span &span, u32 on) {
    const u32 column = (span.slot + on) >> slots.shift, tile = span.row / 128 * ((u32)a.scales_pitch / 4) + column / 4;
    if (slots.tiled) return tile * 512ull + (span.row % 32 * 16 + span.row % 128 / 32 * 4 + column % 4);
    return (u64)span.row * (u32)slots.scale_row + (u64)column * (u32)slots.scale_slot;
}

template <class Q, bool SPECIAL>
__device__ __forceinline__ void store_span_scale(const wp_quantize &a, u64 at, const Scale &scale, bool padding) {
    const u32 stored = padding ? 0 : scale.stored;
    if (scales_are_f32<Q>(a)) {
        ((u32 *)a.scales)[at] = stored;
    } else {
        ((u8 *)a.scales)[at] = (u8)stored;
    }
    if constexpr (INTEGER<Q> && SPECIAL) ((signed char *)a.zeros)[at] = (signed char)scale.zero;
}

/*
 * Computes a scale for each of a thread's slots; returns the largest magnitude that the lane has seen. Sets `beyond`
 * if a scaled magnitude becomes 16 or more, as when the scale itself exceeds its format, or if the scale is
 * negative.
 */
template <class S, class Q, bool SPECIAL>
__device__ __forceinline__ u32 scale_spans(const wp_quantize &a, const Slots &slots, const Span &span,
                                           const Words<typename S::Bits, SLOT<S>> (&x)[GROUP_UNROLL],
                                           Scales<Q, GROUP_UNROLL> &scales, bool &beyond) {
    constexpr int U = GROUP_UNROLL;
    constexpr bool ZEROS = INTEGER<Q> && SPECIAL;
    const u32 lanes = 1u << slots.shift, lane = threadIdx.x % 32, pick = lane & (lanes - 1), on = pick * 32 + lane;
    u32 word[U], own[2] = {}, low[2] = {};
    if constexpr (ZEROS) {
#pragma unroll
        for (int u = 0; u < U; u++) word[u] = largest_word<S, false>(x[u], 0xFFFFFFFF);
        largest_of_groups<S, false>(word, lanes, low);
    }
#pragma unroll
    for (int u = 0; u < U; u++) word[u] = largest_word<S, ZEROS>(x[u], ZEROS ? 0xFFFFFFFF : S::SIZE == 32 ? 0x7FFFFFFF : 0x7FFF7FFF);
    largest_of_groups<S, ZEROS>(word, lanes, own);
    const float tensor = SAME<Q, E2M1> && SPECIAL ? *(const float *)a.tensor_scale : 0.0f;
    /*
     * Two if a group has two lanes. A loop, so that the code exists once; the usual case does not run it
     * twice.
     */
    const bool two = S::SIZE == 16 && lanes == 2;
    constexpr int COPIES = SAME<Q, E2M1> && SPECIAL ? 2 : 1;
    Scale first = {}, second = {};
    u32 most = 0;
#pragma unroll COPIES
    for (u32 i = 0; i < 2; i++) {
        if (i == 1 && !two) break;
        const u32 high = own_half<S>(own[0]);
        const Reach reach = ZEROS ? Reach{size_of_sign<S>(high, false), size_of_sign<S>(own_half<S>(low[0]), true)}
                                  : Reach{SAME<S, F16> ? widen<F16, F32>((u16)(high >> 16)) : high, 0};
        own[0] = own[1], low[0] = low[1], first = second;
        most = max(most, reach.amax());
        if constexpr (ZEROS) second = scale_between<Q>(reach.low, reach.most);
        else if constexpr (SAME<Q, E2M1>) second = SPECIAL ? scale_e4m3(reach.most, tensor) : scale_e8m0(reach.most, TOP_POWER<Q>);
        else second = scale_of<Q>(a.kind, reach.most, tensor);
        beyond = beyond || second.inverse < 0.0f || __uint_as_float(reach.most) * second.inverse >= 16.0f;
    }
    if (!two) first = second;
    const u64 at = span_scale_place(a, slots, span, on);
    const u32 group = on & ~(lanes - 1);
    if (pick < U && on < span.all) store_span_scale<Q, SPECIAL>(a, at, first, group >= span.there);
    /* Slots i and i + 2 are 32 groups apart, in eight tiles. */
    if (two && on + 64 < span.all)
        store_span_scale<Q, SPECIAL>(a, at + (slots.tiled ? 8 * 512 : 32 * slots.scale_slot), second, group + 64 >= span.there);
#pragma unroll
    for (int u = 0; u < U; u++) {
        scales.inverse[u] = __shfl_sync(0xFFFFFFFF, u < 2 ? first.inverse : second.inverse, u, lanes);
        if constexpr (ZEROS) scales.zero[u] = __shfl_sync(0xFFFFFFFF, u < 2 ? first.zero : second.zero, u, lanes);
    }
    return most;
}

/* SPECIAL: integers with zero points, or E2M1 with scales in E4M3. */
template <class S, class Q, bool SPECIAL>
__device__ __forceinline__ void quantize_span(const wp_quantize &a, const Slots &slots, u32 block) {
    constexpr int V = SLOT<S>, U = GROUP_UNROLL;
    constexpr u32 CODES = V * Q::SIZE / 8;
    const u32 lane = threadIdx.x % 32;
    const Span span = span_of<S>(a, slots, block * (QUANT_THREADS / 32) + threadIdx.x / 32);
    const u64 from = a.values + span.row * a.values_pitch + (u64)span.slot * 16 + lane * 16;
    using Slot = Words<typename S::Bits, V>;
    Slot x[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        x[u] = {};
        if (u * 32 + lane < span.there) x[u] = load_words<typename S::Bits, V>(from + u * 512, Kept::IN_TURN);
    }
    Scales<Q, U> scales = {};
    u32 most = 0;
    bool beyond = false;
    if (Q::SIZE == 8 && !INTEGER<Q> && a.granularity == WP_PER_TENSOR) {
        const float inverse = scale_given(*(const float *)a.scales).inverse;
#pragma unroll
        for (int u = 0; u < U; u++) {
            scales.inverse[u] = inverse;
            if (a.amax != 0) most = max(most, largest_of<S, V>(bits_as<Vector<typename S::Bits, V>>(x[u])));
        }
    } else {
        most = scale_spans<S, Q, SPECIAL>(a, slots, span, x, scales, beyond);
    }
    raise_amax(a.amax, most);
    const i32 lowest = SPECIAL ? -HIGHEST<Q> - 1 : -HIGHEST<Q>;
    const u64 to = a.codes + span.row * a.codes_pitch + (u64)span.slot * CODES + lane * CODES;
    const auto store = [&](u32 u, u64 codes) { store_whole<Q, V>(to + u * (32 * CODES), lane, u * 32 + lane < span.there, codes); };
    const auto nearest = [&](auto scaled, u32 u, const Slot &words, const Scale &scale) {
        store(u, encode_near<S, Q, decltype(scaled)::VALUE>(words, scale, lowest));
    };
    if (a.rounding != WP_STOCHASTIC) {
        if (ROLLED<S, Q> || (SAME<Q, E2M1> && SPECIAL && __any_sync(0xFFFFFFFF, beyond))) {
            in_turn<true>(x, [&](u32 u, const Slot &words) {
                nearest(As<Scaled::ANY>(), u, words, scales.of(0));
                scales.move_on();
            });
        } else {
            constexpr Scaled SCALED = !SAME<Q, E2M1> ? Scaled::ANY : SPECIAL ? Scaled::POSITIVE_BELOW_16 : Scaled::POWER_BELOW_8;
            in_turn<false>(x, [&](u32 u, const Slot &words) { nearest(As<SCALED>(), u, words, scales.of(u)); });
        }
        return;
    }
    if constexpr (!INTEGER<Q>) {
        const u64 number = span.row * a.cols + (u64)(span.slot + lane) * V;
        encode_random<S, Q>(x, a.seed, [&](u32 u) { return number + u * (32 * V); }, scales, store);
    }
}

/*
 * Blocks of span_kernel per multiprocessor: as many as the registers of the codes allow. Each additional one was
 * up to 4 % faster (measured).
 */
#if WP_ARCH == 900
template <class S, class Q, bool SPECIAL>
constexpr int SPAN_BLOCKS = S::SIZE == 32 || Q::SIZE == 6 || (SAME<Q, E2M1> && SPECIAL) ? 6 : 5;
#else
template <class S, class Q, bool SPECIAL>
constexpr int SPAN_BLOCKS = WORKED_OUT<Q> && S::SIZE == 16 ? 3 : 4;
#endif

template <class S, class Q, bool SPECIAL>
__global__ void __launch_bounds__(QUANT_THREADS, SPAN_BLOCKS<S, Q, SPECIAL>) span_kernel(const wp_quantize a, const Slots slots) {
    begin_in_order();
    quantize_span<S, Q, SPECIAL>(a, slots, blockIdx.x);
}

}  // namespace wp

#endif /* WARPOOL_QUANT_SPAN_CUH */
