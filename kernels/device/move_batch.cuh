// Batched disjoint moves: one launch for any number and sizes.
//
// The work is split into jobs of one warp: a tile of WP_MOVE_TILE bytes of a large move, or a few
// moves of up to WP_SMALL_MOVE bytes. The table is sorted into these two classes, so a warp knows
// from its job's number what to do. A tile goes through shared memory by bulk copies if the device
// has them, otherwise through registers; small moves go through registers, half a warp each.
//
// A thread block is one warp and ends after one job; the hardware then starts the next block. Both
// matter (measured on an H200, fractions of the device's own copy at blocks of 64 KiB). The resident
// blocks hold the bytes in flight, and 32 tiles of 4 KiB per multiprocessor are just enough: 0.974;
// tiles of 8 KiB 0.947; a block of four such warps, which ends with its slowest, 0.956. And blocks
// that end keep the window of addresses narrow, which a loop does not.
#ifndef WARPOOL_DEVICE_MOVE_BATCH_CUH
#define WARPOOL_DEVICE_MOVE_BATCH_CUH

#include "device/bulk.cuh"
#include "device/in_order.cuh"
#include "device/move.cuh"
#include "device/vector.cuh"

namespace wp {

constexpr unsigned kSmallLanes = 16;
constexpr unsigned kSmallMoves = 4;   // moves that half a warp has in flight at once
constexpr unsigned kSmallVectors = 2; // vectors that a lane has in flight for each of them
constexpr unsigned kSmallJob = 32 / kSmallLanes * kSmallMoves;
constexpr unsigned kBoundedWarps = 16; // warps of a bounded launch's block

struct Batch {
    const uint4 *moves;
    const wp_u32 *first_tile;
    const wp_u32 *group_move;
    wp_u64 small;
    wp_u32 large;
    wp_u32 tiles;
    wp_u64 jobs;
};

__device__ __forceinline__ UnitMove load_move(const uint4 *moves, wp_u64 index) {
    uint4 raw = __ldg(moves + index);
    return unpack(raw.x | wp_u64{raw.y} << 32, raw.z | wp_u64{raw.w} << 32);
}

__device__ __forceinline__ uint4 *vectors(wp_u64 unit) {
    return reinterpret_cast<uint4 *>(unit * kUnit);
}

// A lane's rest of a move: `left` is the number of the move's vectors from these pointers on.
struct Share {
    const uint4 *src;
    uint4 *dst;
    wp_u32 left;
};

__device__ __forceinline__ Share share_of(const UnitMove &move, wp_u64 first) {
    wp_u64 left = first < move.units ? move.units - first : 0;
    // A lane never passes more than a few thousand vectors of a move, so 32 bits are enough.
    return {vectors(move.src) + first, vectors(move.dst) + first, static_cast<wp_u32>(min(left, wp_u64{1} << 30))};
}

// Moves `kVectors` vectors of each of `kMoves` shares, `kStride` apart: all loads, then all stores.
template <unsigned kMoves, unsigned kVectors, unsigned kStride>
__device__ __forceinline__ void move_vectors(const Share (&shares)[kMoves]) {
    uint4 data[kMoves][kVectors];
#pragma unroll
    for (unsigned m = 0; m < kMoves; ++m)
#pragma unroll
        for (unsigned v = 0; v < kVectors; ++v)
            if (v * kStride < shares[m].left)
                data[m][v] = load_once(shares[m].src + v * kStride, Kept::IN_TURN);
#pragma unroll
    for (unsigned m = 0; m < kMoves; ++m)
#pragma unroll
        for (unsigned v = 0; v < kVectors; ++v)
            if (v * kStride < shares[m].left)
                __stcs(shares[m].dst + v * kStride, data[m][v]);
}

// Repeats that until nothing is left.
template <unsigned kMoves, unsigned kVectors, unsigned kStride>
__device__ __forceinline__ void move_shares(Share (&shares)[kMoves]) {
    constexpr unsigned kStep = kVectors * kStride;
    for (bool more = true; more;) {
        move_vectors<kMoves, kVectors, kStride>(shares);
        more = false;
#pragma unroll
        for (unsigned m = 0; m < kMoves; ++m) {
            shares[m].src += kStep;
            shares[m].dst += kStep;
            shares[m].left -= min(shares[m].left, kStep);
            more |= shares[m].left != 0;
        }
    }
}

// A warp's shared memory for a bulk copy.
struct TileStage {
    alignas(128) unsigned char bytes[WP_MOVE_TILE];
    wp_u64 landed;
};

__device__ __forceinline__ void move_small(const Batch &batch, wp_u64 job) {
    unsigned lane = threadIdx.x % 32;
    wp_u64 index = job * kSmallJob + lane / kSmallLanes * kSmallMoves;
    Share shares[kSmallMoves];
#pragma unroll
    for (unsigned m = 0; m < kSmallMoves; ++m) {
        UnitMove move = {0, 0, 0};
        if (index + m < batch.small)
            move = load_move(batch.moves, index + m);
        shares[m] = share_of(move, lane % kSmallLanes);
    }
    move_shares<kSmallMoves, kSmallVectors, kSmallLanes>(shares);
}

// A large move has at least one tile, so a group's tiles belong to at most as many moves: one probe
// per lane finds the move of a tile.
static_assert(WP_TILE_GROUP <= 32, "a warp finds any move of a group");

// The part of a move in `tile`.
__device__ __forceinline__ UnitMove find_tile(const Batch &batch, wp_u32 tile) {
    wp_u32 low = __ldg(batch.group_move + tile / WP_TILE_GROUP);
    wp_u32 probe = low + threadIdx.x % 32;
    wp_u32 first = probe < batch.large ? __ldg(batch.first_tile + probe) : 0xFFFFFFFFu;
    unsigned ahead = 31 - __clz(__ballot_sync(0xFFFFFFFFu, first <= tile));
    UnitMove move = load_move(batch.moves, batch.small + low + ahead);
    wp_u64 base = wp_u64{tile - __shfl_sync(0xFFFFFFFFu, first, ahead)} * (WP_MOVE_TILE / kUnit);
    return {move.src + base, move.dst + base, min(move.units - base, wp_u64{WP_MOVE_TILE / kUnit})};
}

// `phase` is the parity of the number of tiles that the stage has held.
__device__ __forceinline__ void move_tile(const Batch &batch, wp_u32 tile, TileStage &stage, wp_u32 phase) {
    UnitMove part = find_tile(batch, tile);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 != 0)
        return;
    wp_u32 bytes = static_cast<wp_u32>(part.units * kUnit);
    barrier_expect(&stage.landed, bytes);
    bulk_load_mapped(stage.bytes, part.src * kUnit, bytes, &stage.landed);
    barrier_wait(&stage.landed, phase);
    bulk_store_mapped(part.dst * kUnit, stage.bytes, bytes);
    bulk_commit();
    bulk_await_read();
#else
    move_vectors<1, WP_MOVE_TILE / kUnit / 32, 32>({share_of(part, threadIdx.x % 32)});
#endif
}

__device__ __forceinline__ void init_stage(TileStage &stage) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0)
        barrier_init(&stage.landed);
    __syncwarp();
#endif
}

// Tiles first, so that the last jobs, when blocks no longer fill the device, are short.
__global__ void __launch_bounds__(32) move_batch(Batch batch) {
    begin_in_order();
    __shared__ TileStage stage;
    if (blockIdx.x < batch.tiles) {
        init_stage(stage);
        move_tile(batch, blockIdx.x, stage, 0);
    } else {
        move_small(batch, blockIdx.x - batch.tiles);
    }
}

// For a launch with a limited number of blocks. Each block has several warps, to make good use of
// its multiprocessor, and each warp does job after job.
__global__ void __launch_bounds__(kBoundedWarps * 32) move_batch_bounded(Batch batch) {
    begin_in_order();
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned warp = threadIdx.x / 32, warps = blockDim.x / 32;
    TileStage &stage = reinterpret_cast<TileStage *>(shared)[warp];
    init_stage(stage);
    wp_u32 phase = 0;
    for (wp_u64 job = wp_u64{blockIdx.x} * warps + warp; job < batch.jobs; job += wp_u64{gridDim.x} * warps) {
        if (job >= batch.tiles) {
            move_small(batch, job - batch.tiles);
            continue;
        }
        move_tile(batch, static_cast<wp_u32>(job), stage, phase);
        phase ^= 1;
        __syncwarp();
    }
}

} // namespace wp

#endif // WARPOOL_DEVICE_MOVE_BATCH_CUH
