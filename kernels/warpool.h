/*
 * warpool.h: the C ABI between Rust and the kernels, and the only door.
 *
 * Built-in C types only: binding this header needs no CUDA header.
 *
 * Every operation is one argument structure and two entry points:
 *
 *   int wp_cuda_NAME(const wp_NAME *args, void *stream);
 *       queues the operation on a CUDA stream and returns; 0, or the cudaError_t of the launch.
 *   int wp_host_NAME(const wp_NAME *args);
 *       does the same work, element for element, on the calling thread; 0, or a wp_status.
 *
 * Addresses are integers (wp_addr). On a CUDA device they are device addresses, on the host device
 * plain ones. `args` is read before the call returns and need not outlive it; tables and reports
 * that `args` names by address are device memory and must outlive the queued work.
 */
#ifndef WARPOOL_H
#define WARPOOL_H

#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned long long wp_addr;
typedef unsigned long long wp_u64;
typedef unsigned int wp_u32;

/* Bumped with every incompatible change of this header. */
#define WP_ABI_VERSION 6

/* What a wp_host_ function returns; a wp_cuda_ function may also return any cudaError_t. */
typedef enum wp_status {
    WP_OK = 0,
    WP_INVALID = 1 /* an argument is outside what the operation takes; nothing was done */
} wp_status;

/* ---- pattern.cu: stamp, verify, poison ------------------------------------------------------ */

typedef enum wp_pattern_op {
    WP_STAMP = 0,  /* write the pattern of `seed` */
    WP_VERIFY = 1, /* compare with the pattern of `seed`, add to the report */
    WP_POISON = 2  /* write bytes 0xA5 ^ seed, the mark of memory nobody has written */
} wp_pattern_op;

/* What WP_VERIFY adds up, in device memory, by atomic adds; zero it before the first use. */
typedef struct wp_pattern_report {
    wp_u64 verified_bytes;
    wp_u64 corrupt_bytes;
    wp_u64 first_corrupt; /* lowest-numbered corrupt address seen, 0 when none (atomic CAS) */
} wp_pattern_report;

/*
 * Byte i of the pattern of `seed` at block offset o = i: byte (o % 8) of splitmix64(seed + o / 8),
 * little endian, so that any range of a block can be checked on its own.
 * `edge` = 0 covers all `bytes`; else only the first and last `edge` bytes are touched
 * (all of them when 2 * edge >= bytes).
 */
typedef struct wp_pattern {
    wp_addr addr;
    wp_u64 bytes;
    wp_u64 seed;
    wp_u64 edge;
    wp_addr report; /* wp_pattern_report; needed by WP_VERIFY only */
    wp_u32 op;      /* wp_pattern_op */
    wp_u32 pad;
} wp_pattern;

int wp_cuda_pattern(const wp_pattern *args, void *stream);
int wp_host_pattern(const wp_pattern *args);

/* ---- convert.cu: precision conversion ------------------------------------------------------- */

/* The formats of wp_convert up to WP_F64; those after it are of wp_quantize alone. */
typedef enum wp_type {
    WP_F32 = 0,
    WP_F16 = 1,
    WP_BF16 = 2,
    WP_E4M3 = 3,
    WP_E5M2 = 4,
    WP_F64 = 5,
    WP_E2M3 = 6,
    WP_E3M2 = 7,
    WP_E2M1 = 8,
    WP_I8 = 9,
    WP_I4 = 10
} wp_type;

/* How a value between two neighbours of the destination format is rounded. */
typedef enum wp_rounding {
    WP_NEAREST = 0,     /* to the nearer, ties to the even one */
    WP_TOWARD_ZERO = 1,
    WP_UP = 2,          /* toward positive infinity */
    WP_DOWN = 3,        /* toward negative infinity */
    WP_STOCHASTIC = 4   /* up with the probability of the remainder, in steps of 2^-16; the generator is `seed` and the element's number */
} wp_rounding;

/* What becomes of a magnitude that rounds to more than the largest finite one. */
typedef enum wp_overflow {
    WP_TO_INFINITY = 0, /* infinity; NaN in E4M3, which has no infinity; IEEE 754 where rounding is directed */
    WP_SATURATE = 1     /* the largest finite magnitude, for infinities too */
} wp_overflow;

/* A piece of one tensor, for conversions of many tensors in one launch. */
typedef struct wp_tile {
    wp_addr src;
    wp_addr dst;
    wp_u64 index;  /* number of its first element, for stochastic rounding */
    wp_u32 count;  /* below 2^31 */
    wp_u32 tensor; /* which of the tensors it belongs to */
} wp_tile;

/*
 * Elements a tile should have where a tensor has that many, when its destination starts a whole
 * group of wp_convert_group; any count is right, this one is fast. 0 for a pair not converted.
 */
wp_u32 wp_convert_tile(wp_u32 src_type, wp_u32 dst_type);
/* Elements of one aligned store. A tensor whose destination is aligned otherwise is cut so that the
 * second tile starts a group. */
wp_u32 wp_convert_group(wp_u32 src_type, wp_u32 dst_type);

/*
 * Without `tiles`: `rows` rows of `count` elements; row r starts at src + r * src_pitch and
 * dst + r * dst_pitch (bytes, multiples of the element). Element c of row r has the number
 * first + r * count + c. With `tiles`: the `rows` pieces of the table; src, dst, count, first and both
 * pitches are not read. Addresses are aligned to their element. No destination overlaps any source.
 *
 * With `fused`, on formats other than F64, each value x becomes y = x * scale + bias by one fused
 * multiply-add in F32, and y is rounded as asked, also in pairs that are exact without. A NaN in F32
 * is 0x7FFFFFFF then. What the three addresses name is optional:
 *   flag       wp_u32, set to 1 if some y or its result is infinite or NaN; never cleared.
 *   amax       the F32 bits of the largest |y|, raised to it where larger, one a tensor of `tiles`;
 *              NaN counts as larger than infinity.
 *   block_amax without `tiles` and with one row: the largest |y| of each 32 elements, written.
 */
typedef struct wp_convert {
    wp_addr src;
    wp_addr dst;
    wp_u64 count;
    wp_u64 rows;
    wp_u64 src_pitch;
    wp_u64 dst_pitch;
    wp_u64 first;
    wp_u64 seed;
    wp_addr tiles;      /* wp_tile[rows], or 0 */
    wp_addr flag;       /* or 0 */
    wp_addr amax;       /* or 0 */
    wp_addr block_amax; /* or 0 */
    wp_addr scale_at;   /* an F32 that `scale` is multiplied by when the launch runs, or 0 */
    float scale;
    float bias;         /* -0.0 adds nothing, and keeps the sign of zero */
    wp_u32 fused;       /* 0 or 1 */
    wp_u32 src_type;    /* wp_type */
    wp_u32 dst_type;    /* wp_type */
    wp_u32 rounding;    /* wp_rounding; exact conversions ignore it */
    wp_u32 overflow;    /* wp_overflow; exact conversions ignore it */
    wp_u32 pad;
} wp_convert;

int wp_cuda_convert(const wp_convert *args, void *stream);
int wp_host_convert(const wp_convert *args);

/* Bytes that wp_inplace.scratch names, for `count` elements. */
#define WP_INPLACE_TILE 4096
#define WP_INPLACE_SCRATCH(count) (64 + 4 * (((count) + WP_INPLACE_TILE - 1) / WP_INPLACE_TILE))

/*
 * `count` elements converted inside one buffer: element i of the result starts at
 * addr + i * (its size). `addr` is a multiple of 16, and the buffer holds the larger of the two.
 */
typedef struct wp_inplace {
    wp_addr addr;
    wp_u64 count;
    wp_u64 seed;
    wp_addr scratch; /* device memory, a multiple of 16; written by the launch */
    wp_u32 src_type; /* wp_type */
    wp_u32 dst_type; /* wp_type */
    wp_u32 rounding; /* wp_rounding */
    wp_u32 overflow; /* wp_overflow */
} wp_inplace;

int wp_cuda_inplace(const wp_inplace *args, void *stream);
int wp_host_inplace(const wp_inplace *args);

/* ---- quantize.cu: formats with scales -------------------------------------------------------- */

/* Which elements share a scale. */
typedef enum wp_granularity {
    WP_PER_TENSOR = 0, /* all; the scale is given */
    WP_PER_ROW = 1,
    WP_PER_GROUP = 2,  /* `group` neighbours of a row */
    WP_PER_SQUARE = 3  /* 128 rows by 128 columns */
} wp_granularity;

/* What a scale is, and how it is found from the largest magnitude `amax` of its elements. */
typedef enum wp_scale_kind {
    WP_SCALE_F32 = 0,  /* F32: amax / the format's largest value, at least 2^-126 */
    WP_SCALE_E8M0 = 1, /* a power of two, as in OCP MX: that below amax / that of the format's largest value */
    WP_SCALE_E4M3 = 2  /* E4M3, as in NVFP4: amax / 6 / the tensor's scale, rounded to nearest, at least 2^-9 */
} wp_scale_kind;

/*
 * Where the scale of block-row r and block-column c lies, in scales. Both numbers count blocks: a
 * block is 1 x group elements, or 128 x 128, or a row.
 */
typedef enum wp_scale_layout {
    WP_SCALES_BY_ROW = 0,    /* r * scales_pitch + c */
    WP_SCALES_BY_COLUMN = 1, /* c * scales_pitch + r */
    WP_SCALES_TILED = 2      /* tiles of 128 rows by 4 columns, 512 scales each, row after row of tiles; in a tile
                                r % 32 * 16 + r % 128 / 32 * 4 + c % 4. scales_pitch is the columns, a multiple of 4;
                                scales of rows and columns that are not there are written as zeros */
} wp_scale_layout;

/*
 * Values and codes with scales, `rows` x `cols` elements. The value of a code is code * scale
 * (* the tensor's scale). Quantising multiplies by the inverse of that, worked out in F32 and
 * rounded, and rounds the product to a code; beyond the largest code becomes that one, NaN its NaN
 * or, in a format without, 0.
 *
 * Of elements with amax 0 the scale is 1. If one is infinite or NaN, or in NVFP4 amax / 6 / the tensor's
 * scale is, the scale is NaN, and every code the format's NaN or 0.
 *
 * Codes of 4 bits lie two a byte, the first in the lower half; those of 6 bits four in three bytes,
 * the first in the lowest bits. A row of codes begins on a byte; what is left of its last byte is 0.
 *
 * With `zeros`, for integers: lo and hi are the least and the largest value, 0 among them; the scale
 * is (hi - lo) / the number of steps, the zero point z the code of the value 0, as near as it gets,
 * and the value of a code (code - z) * scale. Zero points lie where the scales lie.
 */
typedef struct wp_quantize {
    wp_addr values;
    wp_addr codes;
    wp_addr scales;       /* written, but read where granularity is WP_PER_TENSOR, or dequantising */
    wp_addr zeros;        /* signed bytes, or 0 */
    wp_addr tensor_scale; /* an F32 that is read; WP_SCALE_E4M3 alone */
    wp_addr amax;         /* the F32 bits of the largest |value|, raised to it where larger, NaN largest; or 0 */
    wp_u64 rows;
    wp_u64 cols;
    wp_u64 values_pitch;  /* bytes from a row to the next */
    wp_u64 codes_pitch;   /* likewise */
    wp_u64 scales_pitch;
    wp_u64 seed;
    wp_u32 type;          /* wp_type of the values: F32, F16, BF16 */
    wp_u32 format;        /* wp_type of the codes */
    wp_u32 kind;          /* wp_scale_kind */
    wp_u32 granularity;   /* wp_granularity */
    wp_u32 group;         /* 16, 32, 64 or 128; WP_PER_GROUP alone */
    wp_u32 layout;        /* wp_scale_layout */
    wp_u32 rounding;      /* WP_NEAREST or WP_STOCHASTIC */
    wp_u32 pad;
    wp_addr jobs;         /* wp_quantize_job[rows], or 0 */
    wp_addr places;       /* wp_quantize_place[cols]; with `jobs` alone */
} wp_quantize;

/*
 * A tensor of a table: what wp_quantize says of it, and what the kernels make of that.
 *
 * With `jobs`, one launch does many tensors of one `type`, `format`, `kind` and, quantising, `granularity`:
 * `rows` jobs, in `cols` blocks of threads, of which a place says which block of which job it is. Of the
 * arguments only those, `seed`, `rounding` and `amax` are read. Tensor t is quantised as alone with `seed` + t, and
 * `amax` has a word a tensor.
 */
typedef struct wp_quantize_job {
    wp_quantize tensor;
    wp_u64 how[12];
} wp_quantize_job;

typedef struct wp_quantize_place {
    wp_u32 job;
    wp_u32 block;
} wp_quantize_place;

/*
 * The job of a tensor that is quantised, or dequantised, in a table, and its number of blocks. WP_INVALID
 * for what tables do not have: squares that are quantised, integers, WP_SCALE_E4M3.
 */
int wp_quantize_plan(const wp_quantize *args, wp_u32 quantize, wp_quantize_job *job, wp_u64 *blocks);

int wp_cuda_quantize(const wp_quantize *args, void *stream);
int wp_host_quantize(const wp_quantize *args);

/* The values of codes; `seed`, `rounding` and `amax` are not read. Values are rounded to nearest, in F32 and then to
 * `type`. */
int wp_cuda_dequantize(const wp_quantize *args, void *stream);
int wp_host_dequantize(const wp_quantize *args);

/* ---- transpose.cu: conversion and transposition --------------------------------------------- */

/*
 * `rows` x `cols` values, multiplied by 1 / the scale in F32 and converted, into `plain` as they lie and
 * into `transposed` as `cols` rows of `rows` elements. Element c of row r has the number r * cols + c. No
 * destination overlaps another range.
 */
typedef struct wp_transpose {
    wp_addr src;
    wp_addr plain;      /* or 0 */
    wp_addr transposed;
    wp_addr scale;      /* an F32 that is read when the launch runs, or 0 for 1 */
    wp_addr amax;       /* the F32 bits of the largest |value| before scaling, raised to it where larger, NaN largest; or 0 */
    wp_u64 rows;
    wp_u64 cols;
    wp_u64 src_pitch;   /* bytes from a row to the next */
    wp_u64 plain_pitch;
    wp_u64 transposed_pitch;
    wp_u64 seed;
    wp_u32 src_type;    /* F32, F16, BF16 */
    wp_u32 dst_type;    /* F16, BF16, E4M3, E5M2 */
    wp_u32 rounding;    /* wp_rounding */
    wp_u32 overflow;    /* wp_overflow */
} wp_transpose;

int wp_cuda_transpose(const wp_transpose *args, void *stream);
int wp_host_transpose(const wp_transpose *args);

/* ---- scale.cu: loss scaling ------------------------------------------------------------------ */

/* A scale lies between 2^-126 and 2^126: so it and its inverse are normal numbers. */
#define WP_SCALER_EXPONENT 126

/*
 * The state of a loss scaler, in device memory. `found` gathers what the checks since the last
 * update found; `skip` is what the last update decided from it.
 */
typedef struct wp_scaler {
    float scale;
    float inverse;     /* 1 / scale, rounded to nearest */
    wp_u32 found;      /* 1 if some gradient was infinite or NaN */
    wp_u32 skip;       /* 1 if the last update found one: the step is to be left out */
    wp_u32 good_steps; /* updates in a row that found none, since the last growth */
    wp_u32 interval;   /* after that many the scale grows */
    float growth;
    float backoff;
    wp_u64 updates;
    wp_u64 skipped;
} wp_scaler;

/*
 * Multiplies every element of the tiles (their `src`, in place) by the scaler's `inverse`, in F32
 * rounded to nearest and then to the element's format; sets `found` if some element was infinite
 * or NaN before. Formats: F32, F16, BF16.
 */
typedef struct wp_unscale {
    wp_addr tiles; /* wp_tile[count] */
    wp_u64 count;
    wp_addr scaler; /* wp_scaler */
    wp_u32 type;    /* wp_type */
    wp_u32 pad;
} wp_unscale;

int wp_cuda_unscale(const wp_unscale *args, void *stream);
int wp_host_unscale(const wp_unscale *args);

/*
 * The end of a step: if `found`, scale *= backoff and the run of good steps ends; else the run
 * grows, and at `interval` the scale is multiplied by `growth`. A scale beyond its bounds becomes the
 * bound. Clears `found`.
 *
 * With `most` the scale is made anew instead, and counts of steps stay: it becomes the largest power of two
 * within its bounds by which the sum of the two numbers, none negative, is at most 2^top; 1 where that sum is
 * 0, and its upper bound where it is infinite or NaN. Both become 0.
 *
 * The first number of `largest` becomes its second, and then 0.
 */
typedef struct wp_scaler_update {
    wp_addr scaler;  /* wp_scaler */
    wp_addr most;    /* F32[2], or 0 */
    wp_addr largest; /* F32[2], or 0 */
    int top;         /* from -126 to 126 */
    wp_u32 pad;
} wp_scaler_update;

int wp_cuda_scaler_update(const wp_scaler_update *args, void *stream);
int wp_host_scaler_update(const wp_scaler_update *args);

/* ---- feedback.cu: gradients for the wire -------------------------------------------------------- */

/*
 * `count` values, each with what its code lost before: the code is (src + residual) * scale, rounded, and the
 * residual becomes src + residual - code * inverse, in F32, each step rounded to nearest. Where a value or its
 * code is infinite or NaN, its residual stays. Element i has the number first + i. The three places are multiples
 * of 16, and apart.
 */
typedef struct wp_feedback {
    wp_addr src;      /* F32[count] */
    wp_addr residual; /* F32[count], read and written */
    wp_addr dst;
    wp_addr scale;    /* an F32 that is read when the launch runs */
    wp_addr inverse;  /* likewise: 1 / scale */
    wp_u64 count;
    wp_u64 first;
    wp_u64 seed;
    wp_u32 type;      /* wp_type of the codes: F16, BF16, E4M3, E5M2 */
    wp_u32 rounding;  /* WP_NEAREST or WP_STOCHASTIC */
} wp_feedback;

int wp_cuda_feedback(const wp_feedback *args, void *stream);
int wp_host_feedback(const wp_feedback *args);

/* ---- relocate.cu: batched moves, slides, pointer patch, scattered stores -------------------- */

/*
 * A disjoint move in 16 bytes, because at 256 bytes a move the table is itself 5 % of the traffic.
 * In units of 16 bytes, src / 16 and dst / 16 take 44 bits each (48-bit addresses) and bytes / 16
 * takes 40:
 *   from = src / 16 | (units % 2^20) << 44        to = dst / 16 | (units / 2^20) << 44
 */
typedef struct wp_packed_move {
    wp_u64 from;
    wp_u64 to;
} wp_packed_move;

/* The classes of a wp_relocate table, by the bytes of a move; see relocate.cu for why. */
#define WP_SMALL_MOVE 1024 /* at most this: half a warp moves it; above: tiles, a warp each */
#define WP_MOVE_TILE 4096  /* bytes of a tile */
#define WP_TILE_GROUP 32   /* tiles that share an entry of the index of tiles */

/*
 * `small + large` moves in this order from the table at `moves`, one launch for all. No
 * destination overlaps any source or any other destination: the moves may happen in any order.
 * `first_tile[i]` counts the tiles of the large moves before large move i, `tiles` those of all;
 * `group_move[g]` is the large move that tile g * WP_TILE_GROUP belongs to.
 * A move may be empty. `max_blocks` bounds the thread blocks in flight so that the moves take only
 * that many multiprocessors at most from other work, each block being large enough to use one; 0 is
 * no bound. The host runs it as 0.
 */
typedef struct wp_relocate {
    wp_addr moves;      /* wp_packed_move[small + large], aligned to 16 */
    wp_addr first_tile; /* wp_u32[large] */
    wp_addr group_move; /* wp_u32[(tiles + WP_TILE_GROUP - 1) / WP_TILE_GROUP] */
    wp_u64 small;
    wp_u64 large;
    wp_u32 tiles;
    wp_u32 max_blocks;
} wp_relocate;

int wp_cuda_relocate(const wp_relocate *args, void *stream);
int wp_host_relocate(const wp_relocate *args);

/* A move of a slide or a moved range of a patch. All three are multiples of 16 in a slide. */
typedef struct wp_move {
    wp_addr src;
    wp_addr dst;
    wp_u64 bytes;
} wp_move;

/* The unit in which a slide is loaded, flagged and stored. */
#define WP_SLIDE_TILE 8192
/* Bytes of scratch for a slide whose sources lie in [lo, hi), lo a multiple of WP_SLIDE_TILE. */
#define WP_SLIDE_SCRATCH(lo, hi) (64 + 4 * (((hi) - (lo) + WP_SLIDE_TILE - 1) / WP_SLIDE_TILE))

/*
 * Moves that may overlap their own source and the sources of their neighbours, all in one
 * direction: every destination is at or below its source, or with `upward` every one at or above.
 * The table is in ascending order of source and of destination; no two sources overlap and no two
 * destinations overlap. The outcome is as if every source were read before anything was written.
 * `scratch` is device memory of WP_SLIDE_SCRATCH(lo, hi) bytes that the launch readies by itself and
 * no other work uses meanwhile; the host needs none.
 */
typedef struct wp_slide {
    wp_addr moves;   /* wp_move[count] */
    wp_addr lo;      /* at or below the first source, a multiple of WP_SLIDE_TILE */
    wp_addr hi;      /* at or above the end of the last source */
    wp_addr scratch; /* aligned to 16 */
    wp_u32 count;
    wp_u32 upward;
    wp_u32 max_blocks; /* as in wp_relocate */
    wp_u32 fenced;     /* 1: with fences on every GPU; 0: as chain_bulk.cuh says */
} wp_slide;

int wp_cuda_slide(const wp_slide *args, void *stream);
int wp_host_slide(const wp_slide *args);

/*
 * Rewrites every slot that holds an address in [src, src + bytes) of a range to the same offset
 * from that range's dst. Null, an address in no range, and the end of a range (its first byte
 * beyond) stay as they are. The ranges ascend by src and do not overlap; any alignment is taken.
 */
typedef struct wp_patch {
    wp_addr slots; /* wp_u64[slot_count], aligned to 8 */
    wp_u64 slot_count;
    wp_addr ranges; /* wp_move[range_count] */
    wp_u32 range_count;
    wp_u32 max_blocks; /* as in wp_relocate */
} wp_patch;

int wp_cuda_patch(const wp_patch *args, void *stream);
int wp_host_patch(const wp_patch *args);

/* One word to be stored. */
typedef struct wp_word {
    wp_addr addr; /* aligned to 8 */
    wp_u64 value;
} wp_word;

/* Stores `count` words from the table at `words`; no address occurs twice. */
typedef struct wp_scatter {
    wp_addr words; /* wp_word[count], aligned to 16 */
    wp_u64 count;
} wp_scatter;

int wp_cuda_scatter(const wp_scatter *args, void *stream);
int wp_host_scatter(const wp_scatter *args);

/* ---- load.cu -------------------------------------------------------------------------------- */

/*
 * Loads every kernel into the current context, and counts them. Without it the runtime loads each at
 * its first launch, which takes device memory and may wait for work already queued: behind a stream
 * that the host holds, for ever. 0, or a cudaError_t.
 */
int wp_cuda_load(wp_u32 *kernels);

/*
 * Has launches from now on, on every device, be cut for a GPU of at most so many multiprocessors, threads on
 * each and bytes of L2; 0 is no bound. For tests: a slice of a GPU gives the same bits.
 */
void wp_cuda_limit(int processors, int threads, int cache);

/* The WP_ABI_VERSION that the kernels of either side were compiled with. */
wp_u32 wp_cuda_abi(void);
wp_u32 wp_host_abi(void);

#ifdef __cplusplus
}
#endif
#endif /* WARPOOL_H */
