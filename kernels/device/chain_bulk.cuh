// The tile chain with bulk copies, from compute capability 9.0 on.
//
// Every warp works by itself: it claims a tile, has it copied into shared memory, flags it, and
// stores the tile that it claimed kHeld - 1 turns before. Holding tiles back is what makes a short
// shift fast. A line that is stored to while the L2 cache still has it from being read costs more
// than one that has left (on an H200, at a shift of 64 KiB without any waiting: 0.75 to 0.85 of the
// device's own copy when tiles are stored at once, 0.97 when stored some microseconds later; the
// same bytes reach the memory, but 0.37 of the L2's lookups hit, against 0.05), and what a tile
// would have to wait for has long been loaded.
//
// A flag orders reads before writes, no data passes through it: the tile's bytes are in shared memory
// when its barrier completes, and the flag is set after that; the store is issued after the flag was
// seen, as only a branch on it leads there. In PTX's memory model that is an order only with a release
// at the flag, an acquire where it is read, and a fence between the proxies, since the store is the copy
// engine's. FENCED has them. Without, it is what multiprocessors of compute capability 9.0 do: fenced,
// an H200 gave 0.85 where it gives 0.97 without, and it is the one on which every byte of a great many
// slides was compared. Every other GPU gets FENCED.
#ifndef WARPOOL_DEVICE_CHAIN_BULK_CUH
#define WARPOOL_DEVICE_CHAIN_BULK_CUH

#include "device/bulk.cuh"
#include "device/chain.cuh"

namespace wp {

constexpr unsigned kHeld = 3;           // tiles a warp has room for
constexpr unsigned kSlideWarps = 8;     // of a bounded launch's block; enough to use a multiprocessor
constexpr unsigned kLoneMoveBlocks = 8; // a multiprocessor, of one warp, where tiles need no lookup

static_assert(kGranule % WP_SLIDE_TILE == 0, "a tile lies in one granule");

// What a warp has in shared memory.
struct SlideStage {
    alignas(128) unsigned char tiles[kHeld][WP_SLIDE_TILE];
    wp_u64 landed;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A tile claimed, and where its pieces begin; kNoTile when there is none left.
struct Work {
    wp_u32 tile;
    wp_u32 first;
};

// A tile in shared memory. The lanes have a piece each, the first 32.
struct Held {
    Work work;
    Piece piece;
    bool more; // than 32 pieces
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

// Asks for a ticket; the answer is looked at in `find_work`, as late as may be.
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

// The highest lane has the highest move: only it can tell that there may be more beyond.
__device__ __forceinline__ bool any_beyond(bool more) {
    return __shfl_sync(0xFFFFFFFFu, more, 31);
}

// Has the pieces of a tile copied into `stage`.
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
    // The barrier may count down before it counts up: it completes only with its one arrival.
    if (threadIdx.x % 32 == 0)
        barrier_expect(landed, bytes);
    return held;
}

// Returns when the tiles that a piece lands on are loaded.
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

// A lone move's tiles need no lookup and are claimed when there is room for them, the later the
// better for the order of loads. With more moves the lookup takes two answers of the memory, so the
// ticket is asked for while the tile before is on its way.
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
