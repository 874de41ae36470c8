// The tile chain: one pass of moves that may overlap their own source and their neighbours'.
//
// The addresses that the sources span are cut into tiles on a fixed grid. A tile is loaded whole
// (every piece of a source in it), then flagged as loaded, then stored. The destination of a piece
// overlaps at most two tiles of the grid. Once both are flagged, no unread source lies there, and
// the piece may be stored. So the tiles to wait for follow from addresses alone, and no table of
// dependences is needed.
//
// Tiles are claimed by ticket, in ascending order of address for a downward slide, descending for
// an upward one. A tile waits only for tiles with earlier tickets, and only for their loads. Loads
// wait for space, that is for a store of a still earlier ticket by the same worker. Each wait leads
// to an earlier ticket, so the chain ends, however few blocks are resident.
//
// One word per tile holds its first move, and whether it is loaded.
#ifndef WARPOOL_DEVICE_CHAIN_CUH
#define WARPOOL_DEVICE_CHAIN_CUH

#include "device/in_order.cuh"
#include "device/move.cuh"

namespace wp {

constexpr wp_u32 kLoaded = 0x80000000u; // flag in a tile's word; the rest is its first move
constexpr wp_u32 kNoTile = 0xFFFFFFFFu;
constexpr unsigned kMarkThreads = 256;

struct Chain {
    const wp_move *moves;
    wp_addr lo;
    wp_u32 *ticket;
    wp_u32 *words;
    wp_u32 count;
    wp_u32 tiles;
    wp_u32 upward;
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

__device__ __forceinline__ wp_u32 read_word(const Chain &chain, wp_u32 tile) {
    wp_u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(chain.words + tile) : "memory");
    return word;
}

// The piece of move `index` in `tile`; `more` says whether later moves may have one too.
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

// The tiles, other than its own, that the destination of a piece overlaps; kNoTile if there is
// none.
struct Covered {
    wp_u32 first;
    wp_u32 last;
};

__device__ __forceinline__ Covered covered_by(const Chain &chain, const Piece &piece, wp_u32 tile) {
    if (piece.bytes == 0)
        return {kNoTile, kNoTile};
    // Below `lo` the differences wrap to far beyond the last tile: nothing to wait for there.
    wp_u64 first = (piece.dst - chain.lo) / WP_SLIDE_TILE;
    wp_u64 last = (piece.dst + piece.bytes - 1 - chain.lo) / WP_SLIDE_TILE;
    auto other = [&](wp_u64 met) { return met < chain.tiles && met != tile; };
    return {other(first) ? static_cast<wp_u32>(first) : kNoTile,
            other(last) && last != first ? static_cast<wp_u32>(last) : kNoTile};
}

// Initialises a chain: no ticket is taken and no tile is loaded. Each tile's word is the last move
// that begins at or below the tile's start, or 0; that move may have no piece in it.
__global__ void __launch_bounds__(kMarkThreads) mark_tiles(Chain chain) {
    begin_in_order();
    wp_u32 tile = blockIdx.x * kMarkThreads + threadIdx.x;
    if (tile == 0)
        *chain.ticket = 0;
    if (tile >= chain.tiles)
        return;
    wp_addr begin = tile_begin(chain, tile);
    wp_u32 low = 0;
    for (wp_u32 count = chain.count; count > 1;) {
        wp_u32 half = count / 2;
        bool below = __ldg(&chain.moves[low + half].src) <= begin;
        low += below ? half : 0;
        count = below ? count - half : half;
    }
    chain.words[tile] = low;
}

} // namespace wp

#endif // WARPOOL_DEVICE_CHAIN_CUH
