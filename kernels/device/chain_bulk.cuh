// The tile chain with bulk copies, from compute capability 9.0 on.
//
// Every warp works alone: it claims a tile, copies it into shared memory, flags it, and stores the tile
// that it claimed kHeld - 1 rounds before. Holding tiles back makes short shifts fast, for two reasons.
// A store to a line that the L2 cache still holds from its read costs more than one to a line that has
// left it. (On an H200, at a shift of 64 KiB without any waiting: 0.75 to 0.85 of the device's own copy
// if tiles are stored at once, 0.97 if stored some microseconds later; the same bytes reach the memory,
// but 0.37 of the L2's lookups hit, against 0.05.) And the tiles to wait for were loaded long ago.
//
// A flag orders reads before writes; no data passes through it. The tile's bytes are in shared memory
// when its barrier completes, and the flag is set after that. The store is issued after the flag was
// seen, because only a branch on it leads there. In PTX's memory model that is an order only with a
// release at the flag, an acquire where it is read, and a fence between the proxies, because the copy
// engine does the store. FENCED has them. Without them the order rests on how multiprocessors of compute
// capability 9.0 behave: an H200 reached 0.85 with fences and 0.97 without, and on it every byte of a
// great many slides was compared. Every other GPU gets FENCED.
#ifndef WARPOOL_DEVICE_CHAIN_BULK_CUH
#define WARPOOL_DEVICE_CHAIN_BULK_CUH

#include "device/bulk.cuh"
#include "device/chain.cuh"

namespace wp {

constexpr unsigned kHeld = 3;           // tiles that a warp has space for
constexpr unsigned kSlideWarps = 8;     // warps of a bounded launch's block; enough to use a multiprocessor
constexpr unsigned kLoneMoveBlocks = 8; // blocks per multiprocessor, of one warp each, if tiles need no lookup

static_assert(kGranule % WP_SLIDE_TILE == 0, "a tile lies in one granule");

// A warp's shared memory.
struct SlideStage {
    alignas(128) unsigned char tiles[kHeld][WP_SLIDE_TILE];
    wp_u64 landed;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A claimed tile and its first move; kNoTile if no tile is left.
struct Work {
    wp_u32 tile;
    wp_u32 first;
};

// A tile in shared memory. Each lane holds one of its first 32 pieces.
struct Held {
    Work work;
    Piece piece;
    bool more; // whether the tile has more than 32 pieces
};

template <bool FENCED>
__device__ __forceinline__ void flag_loaded(const Chain &chain, const Work &work) {
    wp_u32 *flag = chain.words + work.tile;
    if constexpr (FENCED)
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(work.first | kLoaded) : "memory");
    else
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(work.first | kLoaded) : "memory");
}

template <bool FENCED>
__device__ __forceinline__ wp_u32 read_flag(const Chain &chain, wp_u32 tile) {
    if constexpr (!FENCED)
        return read_word(chain, tile);
    wp_u32 word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(chain.words + tile) : "memory");
    return word;
}

// Requests a ticket; `find_work` reads the answer as late as possible.
__device__ __forceinline__ wp_u32 ask(const Chain &chain) {
    return threadIdx.x % 32 == 0 ? claim(chain) : 0;
}

__device__ __forceinline__ Work find_work(const Chain &chain, wp_u32 asked) {
    wp_u32 ticket = __shfl_sync(0xFFFFFFFFu, asked, 0);
    if (ticket >= chain.tiles)
        return {kNoTile, 0};
    wp_u32 tile = tile_of(chain, ticket);
    return {tile, chain.count > 1 ? read_word(chain, tile) & ~kLoaded : 0};
}

// The highest lane has the highest move, so only it knows whether there may be more.
__device__ __forceinline__ bool any_beyond(bool more) {
    return __shfl_sync(0xFFFFFFFFu, more, 31);
}

// Starts copying the pieces of a tile into `stage`.
__device__ __forceinline__ Held load_tile(const Chain &chain, const Work &work, unsigned char *stage,
                                          wp_u64 *landed) {
    wp_addr begin = tile_begin(chain, work.tile);
    auto load = [&](const Piece &piece) {
        if (piece.bytes)
            bulk_load(stage + (piece.src - begin), piece.src, piece.bytes, landed);
        return piece.bytes;
    };
    Held held = {work, {0, 0, 0}, false};
    wp_u32 index = work.first + threadIdx.x % 32;
    held.piece = piece_of(chain, index, work.tile, held.more);
    wp_u32 bytes = load(held.piece);
    held.more = any_beyond(held.more);
    for (bool more = held.more; more; more = any_beyond(more)) {
        index += 32;
        bytes += load(piece_of(chain, index, work.tile, more));
    }
    bytes = __reduce_add_sync(0xFFFFFFFFu, bytes);
    // The barrier may count bytes down before it counts them up: it completes only with its one
    // arrival.
    if (threadIdx.x % 32 == 0)
        barrier_expect(landed, bytes);
    return held;
}

// Waits until the tiles that the piece's destination overlaps are loaded.
template <bool FENCED>
__device__ __forceinline__ void await_room(const Chain &chain, const Piece &piece, wp_u32 tile) {
    Covered covered = covered_by(chain, piece, tile);
    wp_u32 first = covered.first == kNoTile ? kLoaded : read_flag<FENCED>(chain, covered.first);
    wp_u32 last = covered.last == kNoTile ? kLoaded : read_flag<FENCED>(chain, covered.last);
    while (!(first & kLoaded))
        first = read_flag<FENCED>(chain, covered.first);
    while (!(last & kLoaded))
        last = read_flag<FENCED>(chain, covered.last);
    if constexpr (FENCED)
        bulk_fence_proxies();
}

template <bool FENCED>
__device__ __forceinline__ void store_tile(const Chain &chain, const Held &held, const unsigned char *stage) {
    wp_addr begin = tile_begin(chain, held.work.tile);
    Piece piece = held.piece;
    wp_u32 index = held.work.first + threadIdx.x % 32;
    for (bool more = held.more;;) {
        await_room<FENCED>(chain, piece, held.work.tile);
        if (piece.bytes)
            bulk_store_mapped(piece.dst, stage + (piece.src - begin), piece.bytes);
        if (!more)
            break;
        index += 32;
        piece = piece_of(chain, index, held.work.tile, more);
        more = any_beyond(more);
    }
    bulk_commit();
    bulk_await_read();
    __syncwarp();
}

// The tiles of a single move need no lookup. They are claimed when there is space for them, because
// a late claim keeps the loads in order. With several moves the lookup reads memory twice, so the
// ticket is requested while the tile before is being copied.
template <bool FENCED>
__device__ __forceinline__ void slide_tiles(const Chain &chain, SlideStage &stage) {
    bool early = chain.count > 1, over = false;
    Held held[kHeld];
#pragma unroll
    for (unsigned slot = 0; slot < kHeld; ++slot)
        held[slot].work.tile = kNoTile;
    Work next = {kNoTile, 0};
    if (early)
        next = find_work(chain, ask(chain));
    wp_u32 phase = 0;
    for (unsigned idle = 0; idle < kHeld;) {
#pragma unroll
        for (unsigned slot = 0; slot < kHeld; ++slot) {
            if (!early && !over)
                next = find_work(chain, ask(chain));
            over = next.tile == kNoTile;
            if (over) {
                held[slot].work.tile = kNoTile;
                ++idle;
            } else {
                held[slot] = load_tile(chain, next, stage.tiles[slot], &stage.landed);
                wp_u32 asked = early ? ask(chain) : 0;
                barrier_wait(&stage.landed, phase);
                phase ^= 1;
                if (threadIdx.x % 32 == 0)
                    flag_loaded<FENCED>(chain, next);
                if (early)
                    next = find_work(chain, asked);
            }
            unsigned oldest = (slot + 1) % kHeld;
            if (held[oldest].work.tile != kNoTile)
                store_tile<FENCED>(chain, held[oldest], stage.tiles[oldest]);
        }
    }
    bulk_await_stored();
}

#endif // __CUDA_ARCH__ >= 900

template <bool FENCED>
__global__ void __launch_bounds__(kSlideWarps * 32) slide_bulk(Chain chain) {
    begin_in_order();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char shared[];
    SlideStage &stage = reinterpret_cast<SlideStage *>(shared)[threadIdx.x / 32];
    if (threadIdx.x % 32 == 0)
        barrier_init(&stage.landed);
    __syncwarp();
    slide_tiles<FENCED>(chain, stage);
#endif
}

} // namespace wp

#endif // WARPOOL_DEVICE_CHAIN_BULK_CUH
