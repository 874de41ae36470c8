/*
 * ahead.cuh: how far ahead of its warps a conversion asks L2 for what they will load.
 *
 * Far enough that it is there in time, so in proportion to what is under way at once, which is the
 * number of multiprocessors; and so near that the cache still has it, so in proportion to the cache
 * at most: a slice of a GPU (MIG) has a few MiB of it.
 */
#ifndef WARPOOL_AHEAD_CUH
#define WARPOOL_AHEAD_CUH

#include "host/shim.h"

namespace wp {

constexpr u32 least(u32 a, u32 b) { return a < b ? a : b; }

/*
 * Tiles: half of the warps that run at once, and a quarter of the cache at most. A warp waits for its
 * tile and then for the tile's elements; this makes the second wait short. Of a copy, for 1,000, 10,000
 * and 100,000 tensors, on 132 multiprocessors: 2048 gave 0.94, 0.88, 0.90, none 0.91, 0.89, 0.83, and
 * 4224 0.87, 0.86, 0.92 (measured on an H200).
 */
constexpr u32 tiles_ahead(int processors, int cache, u32 tile_bytes) {
    return least(16 * (u32)processors, (u32)cache / 4 / tile_bytes);
}

/* A block in so many asks for a run of these bytes. */
constexpr u32 RUN_BYTES = 8192;

/* Bytes: 2 MiB on an H200 (measured), and a sixteenth of the cache at most, in whole runs. */
constexpr u32 run_ahead(int processors, int cache) {
    return least(2 * (u32)processors, (u32)cache / 16 / RUN_BYTES) * RUN_BYTES;
}

/* Bytes that are a short run on every device: no question is asked about it. */
constexpr u64 SHORT_RUN = 1 << 20;

/* An H200, and a seventh of one. */
static_assert(tiles_ahead(132, 50 << 20, 4096) == 2112 && run_ahead(132, 50 << 20) == 264 * RUN_BYTES, "");
static_assert(tiles_ahead(16, 6 << 20, 4096) == 256 && run_ahead(16, 6 << 20) == 32 * RUN_BYTES, "");
static_assert(tiles_ahead(132, 1 << 20, 4096) == 64 && run_ahead(132, 1 << 20) == 8 * RUN_BYTES, "");
static_assert(tiles_ahead(16, 0, 4096) == 0 && run_ahead(16, 0) == 0, "no cache that is told of: none");

}  // namespace wp

#endif /* WARPOOL_AHEAD_CUH */
