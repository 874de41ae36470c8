/*
 * warpool.h: the C ABI between Rust and the kernels, their only interface.
 *
 * Built-in C types only, so that bindings need no CUDA header.
 *
 * Every operation has one argument structure and two entry points:
 *
 *   int wp_cuda_NAME(const wp_NAME *args, void *stream);
 *       queues the operation on a CUDA stream; returns 0 or the launch's cudaError_t.
 *   int wp_host_NAME(const wp_NAME *args);
 *       does the same work, element by element, on the calling thread; returns 0 or a wp_status.
 *
 * Addresses are integers (wp_addr): device addresses on a CUDA device, ordinary ones on the host
 * device. `args` is read before the call returns and need not outlive it. Tables and reports whose
 * addresses are in `args` are device memory and must outlive the queued work.
 */
#ifndef WARPOOL_H
#define WARPOOL_H

#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned long long wp_addr;
typedef unsigned long long wp_u64;
typedef unsigned int wp_u32;

/* Raised with every incompatible change of this header. */
#define WP_ABI_VERSION 6

/* The result of a wp_host_ function; a wp_cuda_ function may also return any cudaError_t. */
typedef enum wp_status {
    WP_OK = 0,
    WP_INVALID = 1 /* an argument is not valid; nothing was done */
} wp_status;

/* ---- pattern.cu: stamp, verify, poison ------------------------------------------------------ */

typedef enum wp_pattern_op {
    WP_STAMP = 0,  /* write the pattern of `seed` */
    WP_VERIFY = 1, /* compare with the pattern of `seed`, add to the report */
    WP_POISON = 2  /* write bytes 0xA5 ^ seed, the mark of unwritten memory */
} wp_pattern_op;

/* The sums of WP_VERIFY in device memory, by atomic adds; zero it before the first use. */
typedef struct wp_pattern_report {
    wp_u64 verified_bytes;
    wp_u64 corrupt_bytes;
    wp_u64 first_corrupt; /* lowest corrupt address so far, 0 if none (atomic CAS) */
} wp_pattern_report;

/*
 * Byte i of the pattern of `seed` at block offset o = i: byte (o % 8) of splitmix64(seed + o / 8),
 * little endian, so that any range of a block can be checked separately.
 * `edge` = 0 covers all `bytes`; otherwise only the first and last `edge` bytes are used
 * (all of them if 2 * edge >= bytes).
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

/* The formats of wp_convert up to WP_F64; the ones after it are only for wp_quantize. */
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

/* The rounding of a value between two adjacent values of the destination format. */
typedef enum wp_rounding {
    WP_NEAREST = 0,     /* to the nearer one, ties to even */
    WP_TOWARD_ZERO = 1,
    WP_UP = 2,          /* toward positive infinity */
    WP_DOWN = 3,        /* toward negative infinity */
    WP_STOCHASTIC = 4   /* up with the probability of the remainder, in steps of 2^-16; drawn from `seed` and the element's number */
} wp_rounding;

/* The result for a magnitude that rounds to more than the largest finite one. */
typedef enum wp_overflow {
    WP_TO_INFINITY = 0, /* infinity; NaN in E4M3, which has no infinity; with directed rounding as in IEEE 754 */
    WP_SATURATE = 1     /* the largest finite magnitude, also for infinities */
} wp_overflow;

/* A piece of one tensor, for conversions of many tensors in one launch. */
typedef struct wp_tile {
    wp_addr src;
    wp_addr dst;
    wp_u64 index;  /* number of its first element, for stochastic rounding */
    wp_u32 count;  /* below 2^31 */
    wp_u32 tensor; /* index of its tensor */
} wp_tile;

/*
 * The fast number of elements of a tile, if the tensor has that many and the tile's destination starts
 * a group of wp_convert_group. Any number is correct. 0 for a pair that is not converted.
 */
wp_u32 wp_convert_tile(wp_u32 src_type, wp_u32 dst_type);
/* Elements of one aligned store. If a tensor's destination is not aligned to it, cut the first tile so
 * that the second starts a group. */
wp_u32 wp_convert_group(wp_u32 src_type, wp_u32 dst_type);

/*
 * Without `tiles`: `rows` rows of `count` elements; row r starts at src + r * src_pitch and
 * dst + r * dst_pitch (bytes, multiples of the element). Element c of row r has the number
 * first + r * count + c. With `tiles`: the `rows` tiles of the table; src, dst, count, first and both
 * pitches are then not read. Addresses are aligned to their element. No destination overlaps any source.
 *
 * With `fused`, on formats other than F64, each value x becomes y = x * scale + bias by one fused
 * multiply-add in F32, and y is rounded by `rounding`, also for pairs that are exact without it. A NaN in F32
 * is then 0x7FFFFFFF. Three results are optional:
 *   flag       wp_u32, set to 1 if any y or its result is infinite or NaN; never cleared.
 *   amax       raised to the F32 bits of the largest |y| if that is larger; one per tensor of `tiles`.
 *              NaN counts as larger than infinity.
 *   block_amax only without `tiles` and with one row: the largest |y| of each 32 elements is written.
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
    wp_addr scale_at;   /* an F32 by which `scale` is multiplied when the launch runs, or 0 */
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

/* Bytes of wp_inplace.scratch for `count` elements. */
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

/* The elements that share a scale. */
typedef enum wp_granularity {
    WP_PER_TENSOR = 0, /* all; the scale is read */
    WP_PER_ROW = 1,
    WP_PER_GROUP = 2,  /* `group` adjacent elements of a row */
    WP_PER_SQUARE = 3  /* 128 rows by 128 columns */
} wp_granularity;

/* The format of a scale, and its computation from the largest magnitude `amax` of its elements. */
typedef enum wp_scale_kind {
    WP_SCALE_F32 = 0,  /* F32: amax / the format's largest value, at least 2^-126 */
    WP_SCALE_E8M0 = 1, /* as in OCP MX: the power of two at or below amax / that at or below the format's largest value */
    WP_SCALE_E4M3 = 2  /* as in NVFP4: amax / (6 * the tensor's scale) in E4M3, rounded to nearest, at least 2^-9 */
} wp_scale_kind;

/*
 * The index of the scale of block-row r and block-column c. Both numbers count blocks: a block is
 * 1 x group elements, or 128 x 128, or a row.
 */
typedef enum wp_scale_layout {
    WP_SCALES_BY_ROW = 0,    /* r * scales_pitch + c */
    WP_SCALES_BY_COLUMN = 1, /* c * scales_pitch + r */
    WP_SCALES_TILED = 2      /* tiles of 128 rows by 4 columns, 512 scales each, one row of tiles after the other; in a tile
                                r % 32 * 16 + r % 128 / 32 * 4 + c % 4. scales_pitch is the number of columns, a
                                multiple of 4. Scales of missing rows and columns are written as zeros */
} wp_scale_layout;

/*
 * Values and codes with scales, `rows` x `cols` elements. The value of a code is code * scale
 * (* the tensor's scale). Quantising computes the inverse of that in F32, rounded, multiplies by it,
 * and rounds the product to a code. A product beyond the largest code becomes that code. A NaN becomes
 * the format's NaN, or 0 in a format without one.
 *
 * If amax is 0, the scale is 1. If an element, or in NVFP4 amax / (6 * the tensor's scale), is infinite or
 * NaN, the scale is NaN, and all its codes are the format's NaN or 0.
 *
 * Codes of 4 bits are packed two per byte, the first in the lower half; codes of 6 bits four in three
 * bytes, the first in the lowest bits. A row of codes begins at a byte; unused bits of its last byte are 0.
 *
 * With `zeros`, for integers: lo and hi are the smallest and the largest of 0 and the values. The scale
 * is (hi - lo) / the number of steps, the zero point z is the code nearest to the value 0, and the
 * value of a code is (code - z) * scale. Zero points have the indexes of the scales.
 */
typedef struct wp_quantize {
    wp_addr values;
    wp_addr codes;
    wp_addr scales;       /* written; read if granularity is WP_PER_TENSOR, and when dequantising */
    wp_addr zeros;        /* signed bytes, or 0 */
    wp_addr tensor_scale; /* an F32, read; only with WP_SCALE_E4M3 */
    wp_addr amax;         /* raised to the F32 bits of the largest |value| if larger, NaN counts as largest; or 0 */
    wp_u64 rows;
    wp_u64 cols;
    wp_u64 values_pitch;  /* bytes from one row to the next */
    wp_u64 codes_pitch;   /* bytes from one row to the next */
    wp_u64 scales_pitch;
    wp_u64 seed;
    wp_u32 type;          /* wp_type of the values: F32, F16, BF16 */
    wp_u32 format;        /* wp_type of the codes */
    wp_u32 kind;          /* wp_scale_kind */
    wp_u32 granularity;   /* wp_granularity */
    wp_u32 group;         /* 16, 32, 64 or 128; only with WP_PER_GROUP */
    wp_u32 layout;        /* wp_scale_layout */
    wp_u32 rounding;      /* WP_NEAREST or WP_STOCHASTIC */
    wp_u32 pad;
    wp_addr jobs;         /* wp_quantize_job[rows], or 0 */
    wp_addr places;       /* wp_quantize_place[cols]; only with `jobs` */
} wp_quantize;

/*
 * A tensor of a table: its arguments, and what the kernels compute from them.
 *
 * With `jobs`, one launch does many tensors of one `type`, `format`, `kind` and, when quantising,
 * `granularity`: `rows` jobs in `cols` thread blocks. The place of a thread block is its job, and its number
 * within the job. Only these arguments, `seed`, `rounding` and `amax` are read. Tensor t is quantised as if
 * alone with `seed` + t, and `amax` has one word per tensor.
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
 * Computes the job of a tensor in a table, and its number of thread blocks. WP_INVALID for what tables do
 * not support: quantising squares, integers, WP_SCALE_E4M3.
 */
int wp_quantize_plan(const wp_quantize *args, wp_u32 quantize, wp_quantize_job *job, wp_u64 *blocks);

int wp_cuda_quantize(const wp_quantize *args, void *stream);
int wp_host_quantize(const wp_quantize *args);

/* Dequantises; `seed`, `rounding` and `amax` are not read. Values are rounded to nearest, in F32 and then to
 * `type`. */
int wp_cuda_dequantize(const wp_quantize *args, void *stream);
int wp_host_dequantize(const wp_quantize *args);

/* ---- transpose.cu: conversion and transposition --------------------------------------------- */

/*
 * Multiplies `rows` x `cols` values by 1 / the scale in F32 and converts them, into `plain` in the same
 * shape and into `transposed` as `cols` rows of `rows` elements. Element c of row r has the number
 * r * cols + c. No destination overlaps another range.
 */
typedef struct wp_transpose {
    wp_addr src;
    wp_addr plain;      /* or 0 */
    wp_addr transposed;
    wp_addr scale;      /* an F32, read when the launch runs; 0 for a scale of 1 */
    wp_addr amax;       /* raised to the F32 bits of the largest |value| before scaling if larger, NaN counts as largest; or 0 */
    wp_u64 rows;
    wp_u64 cols;
    wp_u64 src_pitch;   /* bytes from one row to the next */
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

/* A scale is between 2^-126 and 2^126, so that it and its inverse are normal numbers. */
#define WP_SCALER_EXPONENT 126

/*
 * The state of a loss scaler, in device memory. Checks since the last update set `found`; that update
 * sets `skip` from it.
 */
typedef struct wp_scaler {
    float scale;
    float inverse;     /* 1 / scale, rounded to nearest */
    wp_u32 found;      /* 1 if any gradient was infinite or NaN */
    wp_u32 skip;       /* 1 if `found` was set at the last update: the step must be skipped */
    wp_u32 good_steps; /* updates in a row without `found`, since the last growth */
    wp_u32 interval;   /* the scale grows after this many good steps */
    float growth;
    float backoff;
    wp_u64 updates;
    wp_u64 skipped;
} wp_scaler;

/*
 * Multiplies every element of the tiles (their `src`, in place) by the scaler's `inverse`, in F32
 * rounded to nearest and then to the element's format; sets `found` if any element was infinite
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
 * Ends a step. If `found`, multiplies the scale by `backoff` and sets the good steps to 0. Otherwise counts
 * a good step, and at `interval` multiplies the scale by `growth`. A scale beyond a bound becomes the
 * bound. Clears `found`.
 *
 * With `most` the scale is computed instead, and the step counts stay. It becomes the largest power of two
 * within its bounds whose product with the sum of both numbers (not negative) is at most 2^top; 1 if the
 * sum is 0, and the upper bound if it is infinite or NaN. Both numbers become 0.
 *
 * With `largest`, moves its first number to the second, and sets the first to 0.
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
 * Codes of `count` values, including the rounding errors of earlier codes. The code is (src + residual) *
 * scale, rounded; the residual becomes src + residual - code * inverse, in F32, each step rounded to nearest.
 * If a value or its code is infinite or NaN, its residual stays. Element i has the number first + i. `src`,
 * `residual` and `dst` are multiples of 16 and do not overlap.
 */
typedef struct wp_feedback {
    wp_addr src;      /* F32[count] */
    wp_addr residual; /* F32[count], read and written */
    wp_addr dst;
    wp_addr scale;    /* an F32, read when the launch runs */
    wp_addr inverse;  /* 1 / scale: an F32, read when the launch runs */
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
 * A disjoint move in 16 bytes, because with moves of 256 bytes the table itself is 5 % of the traffic.
 * In units of 16 bytes, src / 16 and dst / 16 take 44 bits each (48-bit addresses) and bytes / 16
 * takes 40:
 *   from = src / 16 | (units % 2^20) << 44        to = dst / 16 | (units / 2^20) << 44
 */
typedef struct wp_packed_move {
    wp_u64 from;
    wp_u64 to;
} wp_packed_move;

/* The classes of a wp_relocate table, by the bytes of a move; see relocate.cu for why. */
#define WP_SMALL_MOVE 1024 /* up to this, half a warp moves it; larger moves are split into tiles of one warp each */
#define WP_MOVE_TILE 4096  /* bytes of a tile */
#define WP_TILE_GROUP 32   /* tiles per entry of the tile index */

/*
 * Executes `small` and then `large` moves from the table at `moves` in one launch. No destination
 * overlaps any source or any other destination, so the moves may happen in any order.
 * `first_tile[i]` is the number of tiles of the large moves before large move i, `tiles` the number of all;
 * `group_move[g]` is the large move that tile g * WP_TILE_GROUP belongs to.
 * A move may be empty. `max_blocks` limits the thread blocks in flight. Each block is large enough to use
 * one multiprocessor, so the moves take at most that many from other work. 0 sets no limit; the host
 * ignores it.
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

/* The unit in which a slide is loaded, flagged and stored, in bytes. */
#define WP_SLIDE_TILE 8192
/* Bytes of scratch for a slide whose sources lie in [lo, hi), lo a multiple of WP_SLIDE_TILE. */
#define WP_SLIDE_SCRATCH(lo, hi) (64 + 4 * (((hi) - (lo) + WP_SLIDE_TILE - 1) / WP_SLIDE_TILE))

/*
 * Executes moves that may overlap their own source and the sources of their neighbours, all in one
 * direction: every destination is at or below its source, or with `upward` at or above it. The table is
 * in ascending order of source and of destination; no two sources and no two destinations overlap. The
 * result is the same as if every source were read before anything is written. `scratch` is device memory
 * of WP_SLIDE_SCRATCH(lo, hi) bytes that the launch initialises and no other work uses meanwhile; the
 * host needs none.
 */
typedef struct wp_slide {
    wp_addr moves;   /* wp_move[count] */
    wp_addr lo;      /* at or below the first source, a multiple of WP_SLIDE_TILE */
    wp_addr hi;      /* at or above the end of the last source */
    wp_addr scratch; /* aligned to 16 */
    wp_u32 count;
    wp_u32 upward;
    wp_u32 max_blocks; /* as in wp_relocate */
    wp_u32 fenced;     /* 1: with fences on every GPU; 0: by the GPU, see chain_bulk.cuh */
} wp_slide;

int wp_cuda_slide(const wp_slide *args, void *stream);
int wp_host_slide(const wp_slide *args);

/*
 * Rewrites every slot that holds an address in [src, src + bytes) of a range to the same offset
 * from that range's dst. Null and addresses in no range stay unchanged, also the address just after a
 * range. The ranges ascend by src and do not overlap; they may have any alignment.
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

/* A word to store. */
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
 * its first launch, which takes device memory and may wait for work already queued: forever if that
 * work waits for the host. Returns 0 or a cudaError_t.
 */
int wp_cuda_load(wp_u32 *kernels);

/*
 * Limits launches from now on, on every device, to this many multiprocessors, threads on each, and bytes of
 * L2; 0 sets no limit. For tests: a slice of a GPU returns the same bits.
 */
void wp_cuda_limit(int processors, int threads, int cache);

/* The WP_ABI_VERSION that the kernels of either side were compiled with. */
wp_u32 wp_cuda_abi(void);
wp_u32 wp_host_abi(void);

#ifdef __cplusplus
}
#endif
#endif /* WARPOOL_H */
