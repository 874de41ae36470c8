/*
 * ahead.cuh: how far ahead a conversion prefetches into L2.
 *
 * Far enough that the data arrives in time: in proportion to what is in flight, which is the number
 * of multiprocessors. And near enough that the cache still has the data: at most a fraction of the
 * cache. A slice of a GPU (MIG) has a few MiB of it.
 */
#ifndef WARPOOL_AHEAD_CUH
#define WARPOOL_AHEAD_CUH

#include "host/shim.h"

namespace wp {

constexpr u32 least(u32 a, u32 b) { return a < b ? a : b; }

/*
 * In tiles: half of the warps that run at once, and at most a quarter of the cache. A warp waits for
 * its tile and then for the tile's elements; prefetching makes the second wait short. Fraction of a
 * copy's speed, for 1,000, 10,000 and 100,000 tensors, on 132 multiprocessors: 0.94, 0.88, 0.90 with
 * 2048 tiles, 0.91, 0.89, 0.83 with none, and 0.87, 0.86, 0.92 with 4224 (measured on an H200).
 */
constexpr u32 tiles_ahead(int processors, int cache, u32 tile_bytes) {
    return least(16 * (u32)processors, (u32)cache / 4 / tile_bytes);
}

/* Bytes of one prefetch, made by one of the blocks that together read as many bytes. */
constexpr u32 RUN_BYTES = 8192;

/* In bytes: 2 MiB on an H200 (measured), and at most a sixteenth of the cache, in whole runs. */
constexpr u32 run_ahead(int processors, int cache) {
    return least(2 * (u32)processors, (u32)cache / 16 / RUN_BYTES) * RUN_BYTES;
}

/* A run of at most these bytes is short on every device, so the device is not queried. */
constexpr u64 SHORT_RUN = 1 << 20;

/* An H200, and a seventh of one. */
static_assert(tiles_ahead(132, 50 << 20, 4096) == 2112 && run_ahead(132, 50 << 20) == 264 * RUN_BYTES, "");
static_assert(tiles_ahead(16, 6 << 20, 4096) == 256 && run_ahead(16, 6 << 20) == 32 * RUN_BYTES, "");
static_assert(tiles_ahead(132, 1 << 20, 4096) == 64 && run_ahead(132, 1 << 20) == 8 * RUN_BYTES, "");
static_assert(tiles_ahead(16, 0, 4096) == 0 && run_ahead(16, 0) == 0, "no cache that is told of: none");

}  // namespace wp

#endif /* WARPOOL_AHEAD_CUH */
