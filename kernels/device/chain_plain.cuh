// The tile chain with plain loads and stores, one tile at a time a block, for devices without bulk
// copies (before compute capability 9.0).
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

__device__ __forceinline__ void slide_tile(const Chain &chain, wp_u32 tile, uint4 *stage) {
    wp_u32 first = first_move(chain, tile);
    wp_addr begin = tile_begin(chain, tile);
    pieces(chain, tile, first, 1, [&](const Piece &piece) {
        // Cached in L2 only: another multiprocessor writes here later in this very launch.
        for (wp_u32 at = threadIdx.x * kUnit; at < piece.bytes; at += kPlainThreads * kUnit)
            stage[(piece.src + at - begin) / kUnit] = __ldcg(reinterpret_cast<const uint4 *>(piece.src + at));
    });
    __syncthreads();
    if (threadIdx.x == 0)
        flag_loaded(chain, tile);
    pieces(chain, tile, first + threadIdx.x, kPlainThreads,
           [&](const Piece &piece) { await_room(chain, piece, tile); });
    __syncthreads();
    pieces(chain, tile, first, 1, [&](const Piece &piece) {
        for (wp_u32 at = threadIdx.x * kUnit; at < piece.bytes; at += kPlainThreads * kUnit)
            __stcs(reinterpret_cast<uint4 *>(piece.dst + at), stage[(piece.src + at - begin) / kUnit]);
    });
}

__global__ void __launch_bounds__(kPlainThreads) slide_plain(Chain chain) {
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
        // The stage and the ticket are free again only when every thread is through.
        __syncthreads();
    }
}

} // namespace wp

#endif // WARPOOL_DEVICE_CHAIN_PLAIN_CUH
