// The tile chain with plain loads and stores, one tile per block at a time, for devices without
// bulk copies (before compute capability 9.0).
#ifndef WARPOOL_DEVICE_CHAIN_PLAIN_CUH
#define WARPOOL_DEVICE_CHAIN_PLAIN_CUH

#include "device/chain.cuh"

namespace wp {

constexpr unsigned kPlainThreads = 256;

// Calls `each(piece)` for the pieces of `tile` from move `index` on, every `step`-th.
template <class Each>
__device__ __forceinline__ void pieces(const Chain &chain, wp_u32 tile, wp_u32 index, wp_u32 step, Each each) {
    bool more = true;
    for (; more; index += step) {
        Piece piece = piece_of(chain, index, tile, more);
        if (piece.bytes)
            each(piece);
    }
}

// Release and acquire, because the tile has passed through other threads of the block.
__device__ __forceinline__ void release_word(const Chain &chain, wp_u32 tile, wp_u32 word) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(chain.words + tile), "r"(word) : "memory");
}

__device__ __forceinline__ wp_u32 acquire_word(const Chain &chain, wp_u32 tile) {
    wp_u32 word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(chain.words + tile) : "memory");
    return word;
}

__device__ __forceinline__ void await_tile(const Chain &chain, wp_u32 tile) {
    while (tile != kNoTile && !(acquire_word(chain, tile) & kLoaded))
        __nanosleep(32);
}

__device__ __forceinline__ void slide_tile(const Chain &chain, wp_u32 tile, uint4 *stage) {
    wp_u32 first = read_word(chain, tile); // the flag is set after the barrier below, at the earliest
    wp_addr begin = tile_begin(chain, tile);
    pieces(chain, tile, first, 1, [&](const Piece &piece) {
        // Cached in L2 only, because another multiprocessor writes here later in this launch.
        for (wp_u32 at = threadIdx.x * kUnit; at < piece.bytes; at += kPlainThreads * kUnit)
            stage[(piece.src + at - begin) / kUnit] = __ldcg(reinterpret_cast<const uint4 *>(piece.src + at));
    });
    __syncthreads();
    if (threadIdx.x == 0)
        release_word(chain, tile, first | kLoaded);
    pieces(chain, tile, first + threadIdx.x, kPlainThreads, [&](const Piece &piece) {
        Covered covered = covered_by(chain, piece, tile);
        await_tile(chain, covered.first);
        await_tile(chain, covered.last);
    });
    __syncthreads();
    pieces(chain, tile, first, 1, [&](const Piece &piece) {
        for (wp_u32 at = threadIdx.x * kUnit; at < piece.bytes; at += kPlainThreads * kUnit)
            __stcs(reinterpret_cast<uint4 *>(piece.dst + at), stage[(piece.src + at - begin) / kUnit]);
    });
}

__global__ void __launch_bounds__(kPlainThreads) slide_plain(Chain chain) {
    begin_in_order();
    __shared__ uint4 stage[WP_SLIDE_TILE / kUnit];
    __shared__ wp_u32 shared_ticket;
    for (;;) {
        if (threadIdx.x == 0)
            shared_ticket = claim(chain);
        __syncthreads();
        wp_u32 ticket = shared_ticket;
        if (ticket >= chain.tiles)
            return;
        slide_tile(chain, tile_of(chain, ticket), stage);
        // The stage and the ticket are free again once every thread is done with them.
        __syncthreads();
    }
}

} // namespace wp

#endif // WARPOOL_DEVICE_CHAIN_PLAIN_CUH
