/*
 * quant_kernel.cuh: from values to codes with scales, in one pass over memory.
 *
 * A slot is 16 bytes of values, V elements of a row, and a thread's unit. Three kernels differ in which
 * threads share a scale: adjacent lanes of a warp, all threads of a row, or a thread block. Groups whose
 * slots are whole are done by quant_span.cuh.
 */
#ifndef WARPOOL_QUANT_KERNEL_CUH
#define WARPOOL_QUANT_KERNEL_CUH

#include "codec.cuh"
#include "convert_kernel.cuh"
#include "fused_ops.cuh"
#include "slots.cuh"

namespace wp {

template <bool B>
struct Known {
    static constexpr bool VALUE = B;
};

__device__ __forceinline__ u64 scale_place(const Slots &s, u64 pitch, const Place &at) {
    const u64 r = at.row >> s.row_shift, c = at.slot >> s.shift;
    return s.tiled ? scale_index(WP_SCALES_TILED, pitch, r, c) : r * s.scale_row + c * s.scale_slot;
}

/* Whether a slot has any values, and whether one load reads it. */
template <class S>
__device__ __forceinline__ bool has_values(const wp_quantize &a, u64 row, u64 slot) {
    return row < a.rows && slot * SLOT<S> < a.cols;
}

template <class S>
__device__ __forceinline__ bool at_once(const wp_quantize &a, bool aligned, u64 row, u64 slot) {
    return aligned && row < a.rows && slot * SLOT<S> + SLOT<S> <= a.cols;
}

/* A slot that is not whole, one element at a time: each is shifted in at the end of the words. */
template <class S>
__device__ __forceinline__ Vector<typename S::Bits, SLOT<S>> load_part(const wp_quantize &a, u64 row, u64 slot) {
    using Bits = typename S::Bits;
    constexpr int V = SLOT<S>;
    const Bits *at = (const Bits *)(a.values + row * a.values_pitch) + slot * V;
    const u32 here = row < a.rows && slot * V < a.cols ? (u32)min(a.cols - slot * V, (u64)V) : 0;
    u32 w[4] = {};
#pragma unroll 1
    for (u32 i = 0; i < V; i++) {
        const u32 x = i < here ? at[i] : 0;
        if constexpr (S::SIZE == 32) {
            w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = x;
        } else {
#pragma unroll
            for (int k = 0; k < 3; k++) w[k] = __funnelshift_r(w[k], w[k + 1], 16);
            w[3] = w[3] >> 16 | x << 16;
        }
    }
    return bits_as<Vector<Bits, V>>(w);
}

/* The slot's values; zeros after the end of the row. */
template <class S>
__device__ __forceinline__ Vector<typename S::Bits, SLOT<S>> load_slot(const wp_quantize &a, bool aligned, u64 row, u64 slot) {
    if (at_once<S>(a, aligned, row, slot))
        return load_streaming<typename S::Bits, SLOT<S>>(a.values + row * a.values_pitch + slot * 16);
    return load_part<S>(a, row, slot);
}

/*
 * The slots of a thread; place(u) is the place of slot u. All whole ones are loaded before any is
 * used. The others follow, by one copy of the code through which the slots rotate.
 */
template <class S, int U, class PlaceOf>
__device__ __forceinline__ void load_slots(Words<typename S::Bits, SLOT<S>> (&x)[U], const wp_quantize &a,
                                           const Alignment &aligned, const PlaceOf &place) {
#pragma unroll
    for (int u = 0; u < U; u++) {
        const Place at = place(u);
        x[u] = {};
        if (at_once<S>(a, aligned.values, at.row, at.slot))
            x[u] = load_words<typename S::Bits, SLOT<S>>(a.values + at.row * a.values_pitch + at.slot * 16, Kept::IN_TURN);
    }
    if (aligned.whole) return;
#pragma unroll 1
    for (int u = 0; u < U; u++) {
        const Place at = place(u);
        Words<typename S::Bits, SLOT<S>> now = x[0];
        if (!at_once<S>(a, aligned.values, at.row, at.slot))
            now = bits_as<Words<typename S::Bits, SLOT<S>>>(load_part<S>(a, at.row, at.slot));
#pragma unroll
        for (int i = 0; i + 1 < U; i++) x[i] = x[i + 1];
        x[U - 1] = now;
    }
}

/*
 * Stores a slot's codes. With 6 bits, 16 codes are three words: four lanes with 4 codes have three
 * bytes each, two lanes with 8 have six. Each lane stores words that it assembles with its neighbour's
 * codes. All lanes of a warp take part. WHOLE: see Alignment.
 */
template <class Q, int V>
__device__ __forceinline__ void store_six(u64 at, u32 lane, bool there, u64 codes) {
    const u32 next = __shfl_down_sync(0xFFFFFFFF, (u32)codes, 1);
    if (!there) return;
    if constexpr (V == 4) {
        u32 *words = (u32 *)(at - lane * 3);
        if (lane < 3) words[lane] = (u32)codes >> (8 * lane) | next << (24 - 8 * lane);
    } else if (lane == 0) {
        ((u32 *)at)[0] = (u32)codes;
        ((u32 *)at)[1] = (u32)(codes >> 32) | next << 16;
    } else {
        ((u32 *)(at + 2))[0] = (u32)(codes >> 16);
    }
}

/* The same for a whole slot, if it is `there`. */
template <class Q, int V>
__device__ __forceinline__ void store_whole(u64 at, u32 slot, bool there, u64 codes) {
    constexpr int BITS = V * Q::SIZE;
    if constexpr (Q::SIZE == 6) {
        store_six<Q, V>(at, slot % (16 / V), there, codes);
    } else if (there) {
        if constexpr (BITS == 64) {
            __stcs((uint2 *)at, make_uint2((u32)codes, (u32)(codes >> 32)));
        } else if constexpr (BITS == 32) {
            __stcs((u32 *)at, (u32)codes);
        } else {
            __stcs((u16 *)at, (u16)codes);
        }
    }
}

/* The same for any slot. WHOLE: see Alignment. */
template <class Q, bool WHOLE, int V>
__device__ __forceinline__ void store_codes(const wp_quantize &a, bool aligned, u64 row, u64 slot, u64 codes) {
    constexpr int BITS = V * Q::SIZE;
    const u64 col = slot * V, at = a.codes + row * a.codes_pitch + slot * (BITS / 8);
    const u64 last = Q::SIZE == 6 ? col / 16 * 16 + 16 : col + V;
    const bool at_once = aligned && last <= a.cols && row < a.rows;
    store_whole<Q, V>(at, (u32)slot, at_once, codes);
    if (WHOLE || at_once || col >= a.cols || row >= a.rows) return;
    const u32 here = (u32)min(a.cols - col, (u64)V), bytes = (here * Q::SIZE + 7) / 8;
    /* The code of a missing value may differ from 0: it may be the zero point. */
    if (here < V) codes &= (1ull << (here * Q::SIZE)) - 1;
#pragma unroll 1
    for (u32 i = 0; i < bytes; i++) ((u8 *)at)[i] = (u8)(codes >> (8 * i));
}

/* The extremes of the values of a slot, a group, a row or a square. */
struct Reach {
    u32 most, low; /* `low` is only for zero points; `most` is then of the positive values */

    __device__ __forceinline__ void join(u32 other_most, u32 other_low) {
        most = max(most, other_most);
        low = max(low, other_low);
    }
    __device__ __forceinline__ u32 amax() const { return max(most, low); }
};

/* The larger of two words, for 16-bit formats by halves; SIGNED: as signed integers. */
template <class S, bool SIGNED>
__device__ __forceinline__ u32 larger(u32 a, u32 b) {
    if constexpr (S::SIZE == 32) return SIGNED ? (u32)max((i32)a, (i32)b) : max(a, b);
    return SIGNED ? __vmaxs2(a, b) : __vmaxu2(a, b);
}

/* The largest word of a slot. */
template <class S, bool SIGNED>
__device__ __forceinline__ u32 largest_word(const Words<typename S::Bits, SLOT<S>> &x, u32 mask) {
    u32 most = x.w[0] & mask;
#pragma unroll
    for (int i = 1; i < 4; i++) most = larger<S, SIGNED>(most, x.w[i] & mask);
    return most;
}

/*
 * The F32 bits of a number's magnitude if it has this sign, otherwise 0; in 16-bit formats it is a word's upper
 * half.
 */
template <class S>
__device__ __forceinline__ u32 size_of_sign(u32 number, bool negative) {
    if ((number >> 31 != 0) != negative) return 0;
    return SAME<S, F16> ? widen<F16, F32>((u16)(number >> 16 & 0x7FFF)) : number & 0x7FFFFFFF;
}

template <class S, class Q>
__device__ __forceinline__ Reach reach_of(const Words<typename S::Bits, SLOT<S>> &x, bool zeros) {
    if constexpr (INTEGER<Q>) {
        if (zeros) {
            /*
             * Compares bits as integers: signed, the largest number is largest; unsigned, the smallest negative
             * number is.
             */
            u32 high = largest_word<S, true>(x, ~0u), low = largest_word<S, false>(x, ~0u);
            if constexpr (S::SIZE == 16) {
                high = larger<F32, true>(high << 16, high & 0xFFFF0000);
                low = larger<F32, false>(low << 16, low & 0xFFFF0000);
            }
            return {size_of_sign<S>(high, false), size_of_sign<S>(low, true)};
        }
    }
    return {largest_of<S, SLOT<S>>(bits_as<Vector<typename S::Bits, SLOT<S>>>(x)), 0};
}

template <class Q>
__device__ __forceinline__ Scale scale_for(const wp_quantize &a, const Reach &reach, float tensor) {
    if constexpr (INTEGER<Q>) {
        if (a.zeros != 0) return scale_between<Q>(reach.low, reach.most);
    }
    return scale_of<Q>(a.kind, reach.most, tensor);
}

/* Stores the scale with index `at`; 0 if it is padding. */
__device__ __forceinline__ void store_scale(const wp_quantize &a, u64 at, const Scale &scale, bool padding) {
    const u32 stored = padding ? 0 : scale.stored;
    if (a.kind == WP_SCALE_F32) {
        ((u32 *)a.scales)[at] = stored;
    } else {
        ((u8 *)a.scales)[at] = (u8)stored;
    }
    if (a.zeros != 0) ((signed char *)a.zeros)[at] = (signed char)scale.zero;
}

__device__ __forceinline__ Coding coding_of(const wp_quantize &a, i32 high) {
    return {a.seed, a.zeros != 0 ? -high - 1 : -high, a.rounding == WP_STOCHASTIC};
}

template <class Q>
constexpr i32 HIGHEST = 0;
template <>
constexpr i32 HIGHEST<I8> = I8::HIGH;
template <>
constexpr i32 HIGHEST<I4> = I4::HIGH;

/* For whole blocks: an atomic only from a block that changes the result. */
__device__ __forceinline__ void raise_amax(wp_addr amax, u32 most) {
    if (amax == 0) return;
    __shared__ u32 block_most;
    if (threadIdx.x == 0) block_most = 0;
    __syncthreads();
    most = warp_max(most);
    if (threadIdx.x % 32 == 0) atomicMax(&block_most, most);
    __syncthreads();
    if (threadIdx.x != 0) return;
    const u32 all = block_most > F32::OVERFLOW ? F32::QNAN : block_most;
    if (all > *(volatile u32 *)amax) atomicMax((u32 *)amax, all);
}

/* The factor of each of a thread's slots. As in in_turn(), a loop takes the first and moves the others down. */
template <class Q, int U>
struct Scales {
    float inverse[U];
    i32 zero[INTEGER<Q> ? U : 1];

    __device__ __forceinline__ Scale of(int u) const { return {inverse[u], 0, INTEGER<Q> ? zero[INTEGER<Q> ? u : 0] : 0}; }
    __device__ __forceinline__ void move_on() {
#pragma unroll
        for (int i = 0; i + 1 < U; i++) {
            inverse[i] = inverse[i + 1];
            if constexpr (INTEGER<Q>) zero[i] = zero[i + 1];
        }
    }
};

struct OneScale {
    Scale scale;

    __device__ __forceinline__ const Scale &of(int) const { return scale; }
    __device__ __forceinline__ void move_on() {}
};

/* Whether codes are rounded without an instruction for it, which takes more registers. */
template <class Q>
constexpr bool WORKED_OUT = WP_ARCH < 890 && !INTEGER<Q>;

/* Whether the slots then share one copy of the code. */
template <class S, class Q>
constexpr bool ROLLED = WORKED_OUT<Q> && S::SIZE == 16 && Q::SIZE >= 6;

/*
 * Turns a thread's slots into codes. With FAST, each whole slot to nearest has its own code; all others share one
 * copy.
 */
template <class S, class Q, bool FAST, int U, class PlaceOf, class ScaleOf>
__device__ __forceinline__ void encode_slots(Words<typename S::Bits, SLOT<S>> (&x)[U], const wp_quantize &a,
                                             const Alignment &aligned, const PlaceOf &place, ScaleOf &&scales) {
    constexpr int V = SLOT<S>;
    const Coding how = coding_of(a, HIGHEST<Q>);
    const auto slot = [&](auto nearest, int u, const Words<typename S::Bits, V> &words, const Scale &scale) {
        constexpr bool WHOLE = decltype(nearest)::VALUE;
        const Place at = place(u);
        u64 codes;
        if constexpr (WHOLE) {
            codes = encode_near<S, Q, Scaled::ANY>(words, scale, how.lowest);
        } else {
            codes = encode_by<S, Q>(words, scale, how, at.row * a.cols + at.slot * V);
        }
        store_codes<Q, WHOLE, V>(a, WHOLE || aligned.codes, at.row, at.slot, codes);
    };
    if constexpr (FAST && !INTEGER<Q> && !WORKED_OUT<Q>) {
        if (aligned.whole && how.stochastic && a.cols % 8 == 0) {
            const auto number = [&](u32 u) { return place(u).row * a.cols + place(u).slot * V; };
            encode_random<S, Q>(x, a.seed, number, scales, [&](u32 u, u64 codes) {
                const Place at = place(u);
                store_codes<Q, true, V>(a, true, at.row, at.slot, codes);
            });
            return;
        }
    }
    if (FAST && !ROLLED<S, Q> && aligned.whole && !how.stochastic) {
        in_turn<false>(x, [&](int u, const auto &words) { slot(Known<true>(), u, words, scales.of(u)); });
    } else {
        in_turn<true>(x, [&](int u, const auto &words) {
            slot(Known<false>(), u, words, scales.of(0));
            scales.move_on();
        });
    }
}

/* By selects, because an index would put the slots' values into local memory. */
__device__ __forceinline__ Reach picked(bool second, const Reach &x, const Reach &y) {
    return {second ? y.most : x.most, second ? y.low : x.low};
}

/*
 * Computes a scale for each slot from the extremes of its group, by adjacent lanes: lane i of a group
 * computes and stores the scale of the group's slot i for all its lanes; in two rounds if a group has 2
 * lanes.
 */
template <class S, class Q, int U, class PlaceOf>
__device__ __forceinline__ void scale_groups(const wp_quantize &a, const Slots &slots, const PlaceOf &place,
                                             Reach (&reach)[U], Scales<Q, U> &scales) {
    static_assert(U == 4, "a lane picks one of four");
    const u32 lanes = 1u << slots.shift, lane = threadIdx.x & (lanes - 1);
    const float tensor = a.tensor_scale != 0 ? *(const float *)a.tensor_scale : 0.0f;
    /*
     * Only groups of F32 have 32 lanes. Testing this for all formats made those of 16 bits 7 % slower
     * (measured).
     */
    if (S::SIZE == 32 && lanes == 32) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            reach[u].most = warp_max(reach[u].most);
            if (INTEGER<Q> && a.zeros != 0) reach[u].low = warp_max(reach[u].low);
        }
    } else {
#pragma unroll 1
        for (u32 d = 1; d < lanes; d *= 2) {
#pragma unroll
            for (int u = 0; u < U; u++) {
                reach[u].most = max(reach[u].most, __shfl_xor_sync(0xFFFFFFFF, reach[u].most, d));
                if (INTEGER<Q> && a.zeros != 0) reach[u].low = max(reach[u].low, __shfl_xor_sync(0xFFFFFFFF, reach[u].low, d));
            }
        }
    }
#pragma unroll 1
    for (u32 from = 0; from < U; from += lanes) {
        const u32 pick = from + lane;
        const Reach own = picked(pick & 2, picked(pick & 1, reach[0], reach[1]), picked(pick & 1, reach[2], reach[3]));
        const Place at = place(pick);
        const Scale scale = scale_for<Q>(a, own, tensor);
        if (pick < U && at.row < slots.rows) {
            const bool padding = !has_values<S>(a, at.row, at.slot >> slots.shift << slots.shift);
            store_scale(a, scale_place(slots, a.scales_pitch, at), scale, padding);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const float inverse = __shfl_sync(0xFFFFFFFF, scale.inverse, u, lanes);
            if (u - from < lanes) scales.inverse[u] = inverse;
            if constexpr (INTEGER<Q>) {
                const i32 zero = __shfl_sync(0xFFFFFFFF, scale.zero, u, lanes);
                if (u - from < lanes) scales.zero[u] = zero;
            }
        }
    }
}

/* Whether few registers are enough. */
template <class S, class Q>
constexpr bool SHORT = S::SIZE == 32 || (Q::SIZE == 8 && !INTEGER<Q> && !(WORKED_OUT<Q> && SAME<S, F16>));

/*
 * Blocks of group_kernel per multiprocessor: four were 1 to 10 % faster than three (measured), if the
 * registers suffice. On other architectures they do not always.
 */
#if WP_ARCH == 900
template <class S, class Q>
constexpr int GROUP_BLOCKS = INTEGER<Q> || (S::SIZE == 16 && Q::SIZE == 4) || (SAME<S, F16> && Q::SIZE == 8) ? 3 : 4;
#else
template <class S, class Q>
constexpr int GROUP_BLOCKS = WORKED_OUT<Q> && S::SIZE == 16 && (Q::SIZE == 6 || (Q::SIZE == 8 && SAME<S, BF16>)) ? 2 : 3;
#endif

/* Groups of a row, each in adjacent lanes; or one given scale. */
template <class S, class Q>
__device__ __forceinline__ void quantize_groups(const wp_quantize &a, const Slots &slots, u32 block) {
    constexpr int V = SLOT<S>, U = GROUP_UNROLL;
    const Place first = first_of(slots, block, U);
    const auto place = [&](u32 u) { return place_of(slots, first, threadIdx.x + u * QUANT_THREADS); };
    Words<typename S::Bits, V> x[U];
    load_slots<S>(x, a, slots.aligned, place);
    Reach reach[U];
    u32 most = 0;
#pragma unroll
    for (int u = 0; u < U; u++) {
        reach[u] = reach_of<S, Q>(x[u], a.zeros != 0);
        most = max(most, reach[u].amax());
    }
    Scales<Q, U> scales = {};
    if (a.granularity == WP_PER_TENSOR) {
        const float inverse = scale_given(*(const float *)a.scales).inverse;
#pragma unroll
        for (int u = 0; u < U; u++) scales.inverse[u] = inverse;
    } else {
        scale_groups<S, Q>(a, slots, place, reach, scales);
    }
    /* Before the codes if that saves the register that a fourth block lacks. */
    if constexpr (S::SIZE == 32) raise_amax(a.amax, most);
    encode_slots<S, Q, false>(x, a, slots.aligned, place, scales);
    if constexpr (S::SIZE != 32) raise_amax(a.amax, most);
}

template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, GROUP_BLOCKS<S, Q>) group_kernel(const wp_quantize a, const Slots slots) {
    begin_in_order();
    quantize_groups<S, Q>(a, slots, blockIdx.x);
}

/*
 * The largest value of each `lanes` adjacent threads, a power of two from 32 on. For whole blocks.
 */
__device__ __forceinline__ u32 row_max(u32 x, u32 lanes) {
    __shared__ u32 of_warps[QUANT_THREADS / 32];
    x = warp_max(x);
    if (lanes == 32) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    const u32 first = threadIdx.x / lanes * (lanes / 32);
    for (u32 w = 0; w < lanes / 32; w++) x = max(x, of_warps[first + w]);
    return x;
}

/*
 * One scale per row. `lanes` threads keep as much of the row as they can, and read the rest a second
 * time.
 */
template <class S, class Q>
__device__ __forceinline__ void quantize_rows(const wp_quantize &a, u32 lanes, const Alignment &aligned, u32 block) {
    constexpr int V = SLOT<S>, R = ROW_HELD;
    const u32 lane = threadIdx.x & (lanes - 1), shift = 31 - __clz(lanes);
    const u64 row = block * (u64)(QUANT_THREADS >> shift) + (threadIdx.x >> shift);
    const u64 slots = (a.cols + V - 1) / V;
    /*
     * The same number of slots for all lanes, because they exchange codes of 6 bits, and maxima. The
     * first slots are read last.
     */
    const u64 most = (slots - 1) / ((u64)R << shift);
    Words<typename S::Bits, V> x[R];
    Reach reach = {0, 0};
    u64 from = most * R;
    const auto place = [&](int k) { return Place{row, lane + ((from + k) << shift)}; };
#pragma unroll 1
    for (u64 round = 0; round <= most; round++) {
        from = (most - round) * R;
        load_slots<S>(x, a, aligned, place);
#pragma unroll
        for (int k = 0; k < R; k++) {
            const Reach here = reach_of<S, Q>(x[k], a.zeros != 0);
            reach.join(here.most, here.low);
        }
    }
    reach.most = row_max(reach.most, lanes);
    if (a.zeros != 0) reach.low = row_max(reach.low, lanes);
    const Scale scale = scale_for<Q>(a, reach, 0.0f);
    if (lane == 0 && row < a.rows) store_scale(a, scale_index(a.layout, a.scales_pitch, row, 0), scale, false);
    /* As in quantize_groups(): before the codes if that saves registers. */
    constexpr bool BEFORE = WORKED_OUT<Q> && SAME<S, F16> && Q::SIZE == 8;
    if constexpr (BEFORE) raise_amax(a.amax, row < a.rows ? reach.amax() : 0);
#pragma unroll 1
    for (from = 0; from <= most * R; from += R) {
        if (from > 0) load_slots<S>(x, a, aligned, place);
        encode_slots<S, Q, true>(x, a, aligned, place, OneScale{scale});
    }
    if constexpr (!BEFORE) raise_amax(a.amax, row < a.rows ? reach.amax() : 0);
}

/* Blocks of row_kernel per multiprocessor. */
template <class S, class Q>
constexpr int ROW_BLOCKS = INTEGER<Q> && WP_ARCH == 900 ? 4 : SHORT<S, Q> ? 3 : 2;

template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, ROW_BLOCKS<S, Q>) row_kernel(const wp_quantize a, u32 lanes, const Alignment aligned) {
    begin_in_order();
    quantize_rows<S, Q>(a, lanes, aligned, blockIdx.x);
}

/* A square of 128 by 128 in the registers of a block. */
template <class S, class Q>
__global__ void __launch_bounds__(QUANT_THREADS, S::SIZE == 32 || (WORKED_OUT<Q> && SAME<S, BF16>) ? 2 : 3)
    square_kernel(const wp_quantize a, u32 across, const Alignment aligned) {
    begin_in_order();
    constexpr int V = SLOT<S>, LANES = 128 / V, ROWS = QUANT_THREADS / LANES, U = 128 / ROWS;
    const u32 r = blockIdx.x / across, c = blockIdx.x % across;
    const u64 row = r * 128ull + threadIdx.x / LANES, slot = c * (u64)LANES + threadIdx.x % LANES;
    const auto place = [&](int u) { return Place{row + (u32)(u * ROWS), slot}; };
    Words<typename S::Bits, V> x[U];
    load_slots<S>(x, a, aligned, place);
    u32 most = 0;
#pragma unroll
    for (int u = 0; u < U; u++) most = max(most, largest_of<S, V>(bits_as<Vector<typename S::Bits, V>>(x[u])));
    most = row_max(most, QUANT_THREADS);
    const Scale scale = scale_f32(most, TOP<Q>);
    if (threadIdx.x == 0) store_scale(a, scale_index(a.layout, a.scales_pitch, r, c), scale, false);
    /* As in quantize_groups(): before the codes if that saves registers. */
    constexpr bool BEFORE = WORKED_OUT<Q> && S::SIZE == 32;
    if constexpr (BEFORE) raise_amax(a.amax, most);
    encode_slots<S, Q, true>(x, a, aligned, place, OneScale{scale});
    if constexpr (!BEFORE) raise_amax(a.amax, most);
}

}  // namespace wp

#endif /* WARPOOL_QUANT_KERNEL_CUH */
