/*
 * slots.cuh: the layout of the slots of a tensor with scales, and the thread blocks that process them.
 *
 * A slot is 16 bytes of values, V elements of a row, and a thread's unit. The host computes these
 * numbers, so that threads need no divisions.
 */
#ifndef WARPOOL_SLOTS_CUH
#define WARPOOL_SLOTS_CUH

#include "divisor.cuh"
#include "quant.cuh"

namespace wp {

constexpr unsigned QUANT_THREADS = 256;

template <class S>
constexpr int SLOT = 128 / S::SIZE;

constexpr int GROUP_UNROLL = 4;   /* slots per thread, QUANT_THREADS apart */
constexpr int DEQUANT_UNROLL = 2; /* slots per thread, QUANT_THREADS apart: 4 were 2 to 10 % slower, one 1 to 8 % (measured) */
constexpr int ROW_HELD = 8;       /* slots of a row that a thread keeps in registers */
constexpr u32 SPAN = 32 * GROUP_UNROLL; /* adjacent slots of a warp */

/* What a thread can use at once. */
struct Alignment {
    bool values; /* 16 bytes of values */
    bool codes;  /* the codes of a slot; of 6 bits, three words */
    bool whole;  /* both, and no slot lies partly in a row */
};

/* The layout of a tensor's slots and scales. */
struct Slots {
    u64 rows;       /* padding included */
    u64 per_row;
    u64 values_skip, codes_skip; /* bytes from the end of a row's slots to the next row's first */
    Divisor by_row; /* by per_row, for `narrow`; with one row every quotient is 0 */
    bool narrow;    /* one row, or rows of more than one slot and fewer than 2^30 */
    bool few;       /* fewer than 2^31 slots in total */
    bool spans;     /* whether each warp does a span; then `by_row` divides by a row's spans */
    u32 row_shift, shift; /* rows and slots per scale, as powers of two; 63 for all */
    u64 scale_row, scale_slot; /* distance of adjacent scales: of the next row, and in the same row */
    bool tiled;
    Alignment aligned;
};

inline bool all_rows_aligned(u64 addr, u64 pitch, u64 rows, u64 to) { return addr % to == 0 && (rows <= 1 || pitch % to == 0); }

template <class S>
bool values_aligned(const wp_quantize &a) {
    return all_rows_aligned(a.values, a.values_pitch, a.rows, 16);
}

template <class S, class Q>
bool codes_aligned(const wp_quantize &a) {
    return all_rows_aligned(a.codes, a.codes_pitch, a.rows, Q::SIZE == 6 ? 4 : SLOT<S> * Q::SIZE / 8);
}

/* Treats rows without gaps between them or between their groups as one. */
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

inline u32 power_of(u64 n) {
    u32 power = 0;
    while (1ull << power < n) power++;
    return power;
}

/* Scales of `high` rows and `width` elements each, all elements if `width` is 0. */
template <class S, class Q>
Slots slots_of(const wp_quantize &a, u64 rows, u64 slots, u64 high, u64 width) {
    constexpr u64 CODES = SLOT<S> * Q::SIZE / 8;
    Slots s = {rows, slots, a.values_pitch - slots * 16, a.codes_pitch - slots * CODES, Divisor(), false, false, false,
               63, 63, 1, 1, false, alignment_of<S, Q>(a)};
    s.narrow = rows == 1 || (slots > 1 && slots < 1 << 30);
    s.few = rows < 0x7FFFF000 / slots;
    if (rows > 1 && s.narrow) s.by_row = Divisor((u32)slots);
    s.aligned.whole = s.aligned.whole && s.narrow;
    if (high != 0) s.row_shift = power_of(high);
    if (width != 0) s.shift = power_of(width / SLOT<S>);
    if (a.layout == WP_SCALES_BY_ROW) s.scale_row = a.scales_pitch;
    if (a.layout == WP_SCALES_BY_COLUMN) s.scale_slot = a.scales_pitch;
    s.tiled = a.granularity == WP_PER_GROUP && a.layout == WP_SCALES_TILED;
    return s;
}

struct Place {
    u64 row, slot;
};

/* The place of a block's first slot; the block does QUANT_THREADS * unroll slots. */
WP_HD Place first_of(const Slots &s, u32 block, u32 unroll) {
    const u64 at = (u64)block * (QUANT_THREADS * unroll);
    if (s.rows == 1) return {0, at};
    const u64 row = s.narrow && s.few ? s.by_row.quotient((u32)at) : at / s.per_row;
    return {row, at - row * s.per_row};
}

/* The place `on` slots after a block's first, within the block. */
WP_HD Place place_of(const Slots &s, const Place &first, u32 on) {
    const u64 at = first.slot + on;
    /* The place after the end of a single row is in a row that does not exist. */
    if (s.rows == 1) return {at >= s.per_row, at};
    /* A row that is not narrow has more slots than a block does, or one. */
    const u64 rows = s.narrow ? s.by_row.quotient((u32)at) : s.per_row == 1 ? at : at >= s.per_row;
    return {first.row + rows, at - rows * s.per_row};
}

/*
 * The same in 32-bit numbers, for a block whose slots are whole. Counted from the block's first row or, with a
 * single row, from its first slot.
 */
struct Near {
    u32 row, slot;
};

struct Window {
    u64 values, codes; /* of the block's first slot */
    u32 first, slots, rows; /* index of the first slot; slots per row; number of rows */

    WP_HD Near near(const Slots &s, u32 on) const {
        const u32 at = first + on, row = s.by_row.quotient(at);
        return {row, at - row * s.by_row.d};
    }
    /* `block`: the place of the block's first slot. */
    WP_HD Place place(const Place &block, const Near &at) const { return {block.row + at.row, block.slot - first + at.slot}; }
    WP_HD bool has(const Near &at) const { return at.row < rows && at.slot < slots; }
};

template <class S, class Q>
WP_HD Window window_of(const wp_quantize &a, const Slots &s, const Place &first) {
    constexpr u64 CODES = SLOT<S> * Q::SIZE / 8, MOST = 1 << 30;
    const u64 all = a.cols / SLOT<S>, before = s.rows == 1 ? first.slot : 0;
    const u64 slots = all > before ? all - before : 0, rows = a.rows > first.row ? a.rows - first.row : 0;
    return {a.values + first.row * a.values_pitch + first.slot * 16, a.codes + first.row * a.codes_pitch + first.slot * CODES,
            s.rows == 1 ? 0 : (u32)first.slot, (u32)(slots < MOST ? slots : MOST),
            (u32)(rows < MOST ? rows : MOST)};
}

inline u64 blocks_of(const Slots &s, u32 unroll) {
    const u64 each = QUANT_THREADS * unroll;
    if (s.rows > ~0ull / s.per_row - each) return ~0ull;
    return (s.rows * s.per_row + each - 1) / each;
}

/* One tensor: its arguments, the layout of its slots, and its blocks. */
struct Job {
    wp_quantize a;
    Slots slots;
    u32 lanes; /* lanes per row */
    u64 blocks;
};

/*
 * Whether warps do spans, `spans` per row: slots must be whole and fill at least half of the spans. Two slots of F32
 * draw random bits together, so a row needs an even number of slots.
 */
inline bool spans_pay(const wp_quantize &a, const Slots &s, u64 spans) {
    const bool filled = s.rows == 1 || s.per_row * 2 >= spans * SPAN, even = a.rows == 1 || a.cols % 8 == 0;
    return s.aligned.whole && filled && even && spans < 0x7FFF0000 / SPAN / s.rows && a.scales_pitch >> 32 == 0;
}

/* Quantising if adjacent lanes share a scale, or all have a given one. */
template <class S, class Q>
Job groups_job(const wp_quantize &given) {
    const wp_quantize a = flattened<S, Q>(given);
    const bool tensor = a.granularity == WP_PER_TENSOR, tiled = !tensor && a.layout == WP_SCALES_TILED;
    const u64 width = tensor ? SLOT<S> : a.group;
    const u64 groups = tiled ? a.scales_pitch : (a.cols + width - 1) / width;
    const u64 rows = tiled ? rounded_up(a.rows, 128) : a.rows;
    Slots slots = slots_of<S, Q>(a, rows, groups * (width / SLOT<S>), 1, width);
    const u64 spans = (slots.per_row + SPAN - 1) / SPAN, each = QUANT_THREADS / 32;
    /* Integers are not in tables, which are planned before the rounding is known. */
    slots.spans = spans_pay(a, slots, spans) && (!INTEGER<Q> || a.rounding == WP_NEAREST);
    if (!slots.spans) return {a, slots, 0, blocks_of(slots, GROUP_UNROLL)};
    slots.by_row = rows == 1 || spans == 1 ? Divisor() : Divisor((u32)spans);
    return {a, slots, 0, (rows * spans + each - 1) / each};
}

/* Quantising with one scale per row. */
template <class S, class Q>
Job rows_job(const wp_quantize &a) {
    const u64 across = (a.cols + SLOT<S> - 1) / SLOT<S>;
    u32 lanes = 32;
    while (lanes < QUANT_THREADS && across > lanes * ROW_HELD) lanes *= 2;
    const u64 at_once = QUANT_THREADS / lanes;
    return {a, slots_of<S, Q>(a, a.rows, across, 1, 0), lanes, (a.rows + at_once - 1) / at_once};
}

/* Dequantising. */
template <class S, class Q>
Job values_job(const wp_quantize &given) {
    const wp_quantize a = flattened<S, Q>(given);
    const u64 high = a.granularity == WP_PER_SQUARE ? 128 : a.granularity == WP_PER_TENSOR ? 0 : 1;
    const u64 width = a.granularity == WP_PER_SQUARE ? 128 : a.granularity == WP_PER_GROUP ? a.group : 0;
    const Slots slots = slots_of<S, Q>(a, a.rows, (a.cols + SLOT<S> - 1) / SLOT<S>, high, width);
    return {a, slots, 0, blocks_of(slots, DEQUANT_UNROLL)};
}

static_assert(sizeof(Job) == sizeof(wp_quantize_job), "a job is what the header says it is");

/* The formats that tables support. */
template <class Q>
constexpr bool IN_TABLES = !INTEGER<Q>;

/* Whether tables support it. They do not quantise squares, whose scale needs a whole block. */
inline bool is_in_tables(const wp_quantize &a, bool quantize) {
    const bool integer = a.format == WP_I8 || a.format == WP_I4;
    const bool rows = a.granularity == WP_PER_ROW || a.granularity == WP_PER_TENSOR || a.granularity == WP_PER_GROUP;
    return !integer && a.kind != WP_SCALE_E4M3 && a.zeros == 0 && (rows || !quantize);
}

/* The same for a table, whose tensors were checked when their jobs were made. */
inline bool is_table(const wp_quantize &t, bool quantize) {
    const bool known = t.type <= WP_BF16 && t.granularity <= WP_PER_SQUARE && t.kind <= WP_SCALE_E4M3;
    return known && (t.rounding == WP_NEAREST || t.rounding == WP_STOCHASTIC) && is_in_tables(t, quantize);
}

}  // namespace wp

#endif /* WARPOOL_SLOTS_CUH */
