// Moves, shared by the device and the host: the packed form, and the arithmetic of tiles.
#ifndef WARPOOL_DEVICE_MOVE_CUH
#define WARPOOL_DEVICE_MOVE_CUH

#include "warpool.h"

#if defined(__CUDACC__)
#define WP_MOVE_FN __host__ __device__ __forceinline__
#else
#define WP_MOVE_FN inline
#endif

namespace wp {

constexpr unsigned kUnit = 16;
constexpr unsigned kAddrBits = 44;
constexpr unsigned kLowUnitBits = 20;

// A move in units of 16 bytes.
struct UnitMove {
    wp_u64 src;
    wp_u64 dst;
    wp_u64 units;
};

WP_MOVE_FN UnitMove unpack(wp_u64 from, wp_u64 to) {
    constexpr wp_u64 addr_mask = (1ull << kAddrBits) - 1;
    return {from & addr_mask, to & addr_mask, (from >> kAddrBits) | (to >> kAddrBits) << kLowUnitBits};
}

// The part of a slide's move whose source lies in one tile.
struct Piece {
    wp_addr src;
    wp_addr dst;
    wp_u32 bytes; // 0: the move has no byte in the tile
};

WP_MOVE_FN Piece clip(const wp_move &move, wp_addr tile_begin, wp_addr tile_end) {
    wp_addr begin = move.src > tile_begin ? move.src : tile_begin;
    wp_addr move_end = move.src + move.bytes;
    wp_addr end = move_end < tile_end ? move_end : tile_end;
    if (begin >= end)
        return {0, 0, 0};
    return {begin, move.dst + (begin - move.src), static_cast<wp_u32>(end - begin)};
}

// The new value of one slot, given the last range that begins at or below it.
WP_MOVE_FN wp_u64 patched(wp_u64 slot, const wp_move &range) {
    wp_u64 offset = slot - range.src;
    return offset < range.bytes ? range.dst + offset : slot;
}

} // namespace wp

#endif // WARPOOL_DEVICE_MOVE_CUH
