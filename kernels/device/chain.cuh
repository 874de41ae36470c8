// The tile chain: moves that may overlap their own source and their neighbours', in one pass.
//
// The addresses that the sources span are cut into tiles on a fixed grid. A tile is loaded whole
// (every piece of a source that lies in it), then flagged as loaded, then stored. The destination
// of a piece meets at most two tiles of the grid; once both are flagged, nothing that has yet to be
// read lies there, and the piece may be stored. So what a tile waits for follows from addresses
// alone, and no table of dependences is needed.
//
// Tiles are claimed by a ticket, in ascending order of address for a slide downwards, descending
// for one upwards. A tile waits only for tiles of earlier tickets, and only for their loads. Loads
// wait for room, that is for a store of a still earlier ticket by the same block. Each link leads
// to an earlier ticket, so the chain ends, however few blocks are resident.
#ifndef WARPOOL_DEVICE_CHAIN_CUH
#define WARPOOL_DEVICE_CHAIN_CUH

#include "device/move_batch.cuh"

namespace wp {

struct Chain {
    const wp_move *moves;
    wp_addr lo;
    wp_u32 *ticket;
    wp_u32 *loaded; // a flag a tile
    wp_u32 count;
    wp_u32 tiles;
    wp_u32 upward;
    wp_u32 stages; // tiles a block holds at once, where it can hold several
};

__device__ __forceinline__ wp_u32 claim(const Chain &chain) {
    return atomicAdd(chain.ticket, 1u);
}

__device__ __forceinline__ wp_u32 tile_of(const Chain &chain, wp_u32 ticket) {
    return chain.upward ? chain.tiles - 1 - ticket : ticket;
}

__device__ __forceinline__ wp_addr tile_begin(const Chain &chain, wp_u32 tile) {
    return chain.lo + wp_u64{tile} * WP_SLIDE_TILE;
}

// A move from which on the pieces of a tile are found; its own piece may be empty.
__device__ __forceinline__ wp_u32 first_move(const Chain &chain, wp_u32 tile) {
    const wp_move *moves = chain.moves;
    auto src_at = [moves](wp_u32 i) { return __ldg(&moves[i].src); };
    return warp_last_at_or_below(src_at, chain.count, tile_begin(chain, tile));
}

// The piece of move `index` in `tile`; `more` tells whether later moves may have one too.
__device__ __forceinline__ Piece piece_of(const Chain &chain, wp_u32 index, wp_u32 tile, bool &more) {
    more = false;
    if (index >= chain.count)
        return {0, 0, 0};
    const wp_move *entry = chain.moves + index;
    wp_move move = {__ldg(&entry->src), __ldg(&entry->dst), __ldg(&entry->bytes)};
    wp_addr begin = tile_begin(chain, tile);
    more = move.src + move.bytes < begin + WP_SLIDE_TILE;
    return clip(move, begin, begin + WP_SLIDE_TILE);
}

__device__ __forceinline__ void flag_loaded(const Chain &chain, wp_u32 tile) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(chain.loaded + tile), "r"(1u) : "memory");
}

__device__ __forceinline__ void await_loaded(const Chain &chain, wp_u64 tile) {
    wp_u32 loaded;
    for (;;) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(loaded) : "l"(chain.loaded + tile) : "memory");
        if (loaded)
            return;
        __nanosleep(32);
    }
}

// Returns when the destination of `piece`, which is of `tile`, holds nothing that is yet to be read.
__device__ __forceinline__ void await_room(const Chain &chain, const Piece &piece, wp_u32 tile) {
    // Below `lo` the differences wrap to far beyond the last tile: nothing to wait for there.
    wp_u64 first = (piece.dst - chain.lo) / WP_SLIDE_TILE;
    wp_u64 last = (piece.dst + piece.bytes - 1 - chain.lo) / WP_SLIDE_TILE;
    if (first < chain.tiles && first != tile)
        await_loaded(chain, first);
    if (last < chain.tiles && last != tile && last != first)
        await_loaded(chain, last);
}

} // namespace wp

#endif // WARPOOL_DEVICE_CHAIN_CUH
