// Batched disjoint moves: one launch whatever the number and the sizes.
//
// A move is given to as many threads as its size keeps busy: half a warp up to WP_SMALL_MOVE, a
// warp up to WP_MEDIUM_MOVE, and above that a thread block for each tile of WP_MOVE_TILE bytes. The
// table comes sorted into these three classes, so a block knows from its number what it does. A
// block lives for one piece of work and the hardware hands out the next: that keeps the window of
// addresses in flight narrow, which a grid-stride loop does not (a plain copy on an H200: 0.91 to
// 0.95 of the device's own copy with such a loop, 0.98 to 1.01 without).
#ifndef WARPOOL_DEVICE_MOVE_BATCH_CUH
#define WARPOOL_DEVICE_MOVE_BATCH_CUH

#include "device/move.cuh"

namespace wp {

constexpr unsigned kMoveThreads = 256;
constexpr unsigned kSmallLanes = 16;
constexpr unsigned kSmallMoves = 2;    // moves half a warp has in flight at once
constexpr unsigned kSmallVectors = 2;  // vectors a lane has in flight for each of them
constexpr unsigned kMediumVectors = 4; // 2 KiB a warp in flight
constexpr unsigned kTileVectors = WP_MOVE_TILE / kUnit / kMoveThreads;

struct Batch {
    const uint4 *moves;
    const wp_u32 *first_tile;
    const wp_u32 *group_move;
    wp_u64 small;
    wp_u64 medium;
    wp_u32 large;
    wp_u32 tiles;
    wp_u64 medium_blocks;
    wp_u64 blocks;
};

// The last index in [0, count) whose key is at or below `key`, by all lanes of a warp together:
// 32 probes a round, so 10^5 keys take four rounds of latency and not seventeen. 0 if there is none.
template <class Key> __device__ __forceinline__ wp_u32 warp_last_at_or_below(Key at, wp_u32 count, wp_u64 key) {
    unsigned lane = threadIdx.x % 32;
    wp_u32 low = 0;
    while (count > 1) {
        wp_u32 step = (count + 31) / 32;
        wp_u32 probe = lane * step;
        bool below = lane == 0 || (probe < count && at(low + probe) <= key);
        wp_u32 last = 31 - __clz(__ballot_sync(0xFFFFFFFFu, below));
        low += last * step;
        count = min(step, count - last * step);
    }
    return low;
}

__device__ __forceinline__ UnitMove load_move(const uint4 *moves, wp_u64 index) {
    uint4 raw = __ldg(moves + index);
    return unpack(raw.x | wp_u64{raw.y} << 32, raw.z | wp_u64{raw.w} << 32);
}

__device__ __forceinline__ uint4 *vectors(wp_u64 unit) {
    return reinterpret_cast<uint4 *>(unit * kUnit);
}

// What a lane still has to move: `left` counts the vectors of the move from these pointers on.
struct Share {
    const uint4 *src;
    uint4 *dst;
    wp_u32 left;
};

__device__ __forceinline__ Share share_of(const UnitMove &move, wp_u64 first) {
    wp_u64 left = first < move.units ? move.units - first : 0;
    // A lane only ever goes through a few thousand vectors of a move: 32 bits do.
    return {vectors(move.src) + first, vectors(move.dst) + first, static_cast<wp_u32>(min(left, wp_u64{1} << 30))};
}

// `kVectors` vectors of each of `kMoves` shares, `kStride` apart: all loads, then all stores.
template <unsigned kMoves, unsigned kVectors, unsigned kStride>
__device__ __forceinline__ void move_vectors(const Share (&shares)[kMoves]) {
    uint4 data[kMoves][kVectors];
#pragma unroll
    for (unsigned m = 0; m < kMoves; ++m)
#pragma unroll
        for (unsigned v = 0; v < kVectors; ++v)
            if (v * kStride < shares[m].left)
                data[m][v] = __ldcs(shares[m].src + v * kStride);
#pragma unroll
    for (unsigned m = 0; m < kMoves; ++m)
#pragma unroll
        for (unsigned v = 0; v < kVectors; ++v)
            if (v * kStride < shares[m].left)
                __stcs(shares[m].dst + v * kStride, data[m][v]);
}

// The same until nothing is left.
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

__device__ __forceinline__ void move_small(const Batch &batch, wp_u64 block) {
    wp_u64 index = (block * (kMoveThreads / kSmallLanes) + threadIdx.x / kSmallLanes) * kSmallMoves;
    Share shares[kSmallMoves];
#pragma unroll
    for (unsigned m = 0; m < kSmallMoves; ++m) {
        UnitMove move = {0, 0, 0};
        if (index + m < batch.small)
            move = load_move(batch.moves, index + m);
        shares[m] = share_of(move, threadIdx.x % kSmallLanes);
    }
    move_shares<kSmallMoves, kSmallVectors, kSmallLanes>(shares);
}

__device__ __forceinline__ void move_medium(const Batch &batch, wp_u64 block) {
    wp_u64 index = block * (kMoveThreads / 32) + threadIdx.x / 32;
    if (index >= batch.medium)
        return;
    Share shares[1] = {share_of(load_move(batch.moves, batch.small + index), threadIdx.x % 32)};
    move_shares<1, kMediumVectors, 32>(shares);
}

// A large move has at least so many tiles, and so a group's tiles belong to at most 32 moves: one
// probe a lane finds the move of a tile.
constexpr unsigned kFewestTiles = WP_MEDIUM_MOVE / WP_MOVE_TILE + 1;
static_assert((WP_TILE_GROUP - 1) / kFewestTiles + 2 <= 32, "a warp finds any move of a group");

__device__ __forceinline__ void move_tile(const Batch &batch, wp_u32 tile) {
    wp_u32 low = __ldg(batch.group_move + tile / WP_TILE_GROUP);
    wp_u32 probe = low + threadIdx.x % 32;
    wp_u32 first = probe < batch.large ? __ldg(batch.first_tile + probe) : 0xFFFFFFFFu;
    unsigned ahead = 31 - __clz(__ballot_sync(0xFFFFFFFFu, first <= tile));
    UnitMove move = load_move(batch.moves, batch.small + batch.medium + low + ahead);
    wp_u64 base = wp_u64{tile - __shfl_sync(0xFFFFFFFFu, first, ahead)} * (WP_MOVE_TILE / kUnit);
    move_vectors<1, kTileVectors, kMoveThreads>({share_of(move, base + threadIdx.x)});
}

// Large moves first: what is left at the end, when blocks no longer fill the device, is short.
__device__ __forceinline__ void move_block(const Batch &batch, wp_u64 block) {
    if (block < batch.tiles)
        move_tile(batch, static_cast<wp_u32>(block));
    else if (block - batch.tiles < batch.medium_blocks)
        move_medium(batch, block - batch.tiles);
    else
        move_small(batch, block - batch.tiles - batch.medium_blocks);
}

__global__ void __launch_bounds__(kMoveThreads) move_batch(Batch batch) {
    move_block(batch, blockIdx.x);
}

// Apart, because the loop costs registers (58 against 32) that the unbounded form needs to keep
// enough bytes in flight.
__global__ void __launch_bounds__(kMoveThreads) move_batch_bounded(Batch batch) {
    for (wp_u64 block = blockIdx.x; block < batch.blocks; block += gridDim.x)
        move_block(batch, block);
}

} // namespace wp

#endif // WARPOOL_DEVICE_MOVE_BATCH_CUH
