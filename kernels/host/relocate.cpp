// Moves, slides, patches and scattered stores on the calling thread, with the same result as the
// kernels of relocate.cu.
#include <string.h>

#include "device/move.cuh"

namespace {

template <class T> T *at(wp_addr addr) {
    return reinterpret_cast<T *>(addr);
}

bool aligned(wp_addr addr, wp_u64 to) {
    return addr % to == 0;
}

void move_bytes(const wp_move &move) {
    memmove(at<void>(move.dst), at<void>(move.src), move.bytes);
}

// The number of ranges that begin at or below `slot`.
wp_u32 ranges_at_or_below(const wp_move *ranges, wp_u32 count, wp_u64 slot) {
    wp_u32 low = 0;
    while (count > 0) {
        wp_u32 half = count / 2;
        if (ranges[low + half].src <= slot) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return low;
}

} // namespace

extern "C" int wp_host_relocate(const wp_relocate *args) {
    if (!aligned(args->moves, 16) || args->large > args->tiles)
        return WP_INVALID;
    const wp_packed_move *moves = at<const wp_packed_move>(args->moves);
    wp_u64 count = args->small + args->large;
    for (wp_u64 i = 0; i < count; ++i) {
        wp::UnitMove move = wp::unpack(moves[i].from, moves[i].to);
        memcpy(at<void>(move.dst * wp::kUnit), at<void>(move.src * wp::kUnit), move.units * wp::kUnit);
    }
    return WP_OK;
}

extern "C" int wp_host_slide(const wp_slide *args) {
    if (!aligned(args->lo, WP_SLIDE_TILE) || args->hi < args->lo || !aligned(args->scratch, 16))
        return WP_INVALID;
    const wp_move *moves = at<const wp_move>(args->moves);
    for (wp_u32 i = 0; i < args->count; ++i)
        move_bytes(moves[args->upward ? args->count - 1 - i : i]);
    return WP_OK;
}

extern "C" int wp_host_patch(const wp_patch *args) {
    if (!aligned(args->slots, 8) || !aligned(args->ranges, 8))
        return WP_INVALID;
    const wp_move *ranges = at<const wp_move>(args->ranges);
    wp_u64 *slots = at<wp_u64>(args->slots);
    for (wp_u64 i = 0; i < args->slot_count; ++i) {
        wp_u32 below = ranges_at_or_below(ranges, args->range_count, slots[i]);
        if (below > 0)
            slots[i] = wp::patched(slots[i], ranges[below - 1]);
    }
    return WP_OK;
}

extern "C" int wp_host_scatter(const wp_scatter *args) {
    if (!aligned(args->words, 16))
        return WP_INVALID;
    const wp_word *words = at<const wp_word>(args->words);
    for (wp_u64 i = 0; i < args->count; ++i)
        *at<wp_u64>(words[i].addr) = words[i].value;
    return WP_OK;
}
