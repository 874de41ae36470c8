// The tile chain with bulk copies, from compute capability 9.0 on.
//
// A block keeps a ring of stages in shared memory, a tile each, and three warps: one claims tiles
// and loads them, one flags what has landed, one waits for room and stores. Loads, flags and stores
// so run beside each other, and the latency of a ticket, a flag or a neighbour is hidden as long as
// the ring holds more than the memory has in flight. That the flag has a warp of its own matters: a
// loaded tile must be flagged even while the store of the tile before it still waits.
#ifndef WARPOOL_DEVICE_CHAIN_BULK_CUH
#define WARPOOL_DEVICE_CHAIN_BULK_CUH

#include "device/chain.cuh"

namespace wp {

constexpr unsigned kBulkThreads = 96;
constexpr unsigned kMaxStages = 8;
constexpr wp_u32 kNoTile = 0xFFFFFFFFu;
constexpr wp_u64 kGranule = 2u << 20; // mappings begin and end at multiples of this

static_assert(kGranule % WP_SLIDE_TILE == 0, "a tile lies in one granule");

// What stands in shared memory before the tiles themselves.
struct Ring {
    wp_u64 full[kMaxStages];  // the stage's tile has landed
    wp_u64 empty[kMaxStages]; // the stage may be loaded again
    wp_u32 tile[kMaxStages];
    wp_u32 first[kMaxStages]; // first_move of the tile
};

constexpr unsigned kRingBytes = (sizeof(Ring) + 127) / 128 * 128;

inline unsigned bulk_shared_bytes(unsigned stages) {
    return kRingBytes + stages * WP_SLIDE_TILE;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ __forceinline__ wp_u32 shared_addr(const void *at) {
    return static_cast<wp_u32>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void barrier_init(wp_u64 *barrier, wp_u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_addr(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_arrive(wp_u64 *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_addr(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_expect(wp_u64 *barrier, wp_u32 bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_addr(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_wait(wp_u64 *barrier, wp_u32 parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_addr(barrier)),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void bulk_load(unsigned char *stage, wp_addr src, wp_u32 bytes, wp_u64 *full) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_addr(stage)),
                 "l"(src), "r"(bytes), "r"(shared_addr(full))
                 : "memory");
}

__device__ __forceinline__ void bulk_store(wp_addr dst, const unsigned char *stage, wp_u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(shared_addr(stage)),
                 "r"(bytes)
                 : "memory");
}

// Stores a piece in two where it crosses from one granule of mapped memory to the next: neighbouring
// mappings are two allocations to compute-sanitizer, and it takes one copy into both for a stray
// write. Loads need no such care, since a tile of the grid never crosses.
__device__ __forceinline__ void bulk_store_mapped(wp_addr dst, const unsigned char *stage, wp_u32 bytes) {
    wp_u64 room = kGranule - dst % kGranule;
    wp_u32 head = room < bytes ? static_cast<wp_u32>(room) : bytes;
    bulk_store(dst, stage, head);
    if (head < bytes)
        bulk_store(dst + head, stage + head, bytes - head);
}

// Calls `each(piece)` with all lanes of the warp, a piece a lane (empty ones too), round by round.
template <class Each>
__device__ __forceinline__ void warp_pieces(const Chain &chain, wp_u32 tile, wp_u32 first, Each each) {
    bool more = true;
    for (wp_u32 index = first + threadIdx.x % 32; more; index += 32) {
        Piece piece = piece_of(chain, index, tile, more);
        each(piece);
        // The highest lane has the highest move: only it can tell that there may be more beyond.
        more = __shfl_sync(0xFFFFFFFFu, more, 31);
    }
}

__device__ __forceinline__ void load_tiles(const Chain &chain, Ring &ring, unsigned char *stages) {
    unsigned lane = threadIdx.x % 32;
    wp_u32 claimed = lane == 0 ? claim(chain) : 0;
    for (wp_u32 stage = 0, parity = 1;;) {
        wp_u32 ticket = __shfl_sync(0xFFFFFFFFu, claimed, 0);
        bool last = ticket >= chain.tiles;
        wp_u32 tile = last ? kNoTile : tile_of(chain, ticket);
        wp_u32 first = last ? 0 : first_move(chain, tile);
        barrier_wait(&ring.empty[stage], parity);
        if (lane == 0) {
            ring.tile[stage] = tile;
            ring.first[stage] = first;
        }
        if (!last) {
            wp_addr begin = tile_begin(chain, tile);
            warp_pieces(chain, tile, first, [&](const Piece &piece) {
                wp_u32 bytes = __reduce_add_sync(0xFFFFFFFFu, piece.bytes);
                if (lane == 0)
                    barrier_expect(&ring.full[stage], bytes);
                __syncwarp();
                if (piece.bytes)
                    bulk_load(stages + stage * WP_SLIDE_TILE + (piece.src - begin), piece.src, piece.bytes,
                              &ring.full[stage]);
            });
        }
        if (lane == 0)
            barrier_arrive(&ring.full[stage]);
        if (last)
            return;
        // Asked for now and looked at only in the next round: the answer takes about as long as a
        // load. A ticket held without room for it is safe, since that room frees in ticket order.
        if (lane == 0)
            claimed = claim(chain);
        if (++stage == chain.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
}

// One thread: flags each tile as soon as it has landed.
__device__ __forceinline__ void flag_tiles(const Chain &chain, Ring &ring) {
    for (wp_u32 stage = 0, parity = 0;;) {
        barrier_wait(&ring.full[stage], parity);
        wp_u32 tile = ring.tile[stage];
        if (tile == kNoTile)
            return;
        flag_loaded(chain, tile);
        barrier_arrive(&ring.empty[stage]);
        if (++stage == chain.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
}

__device__ __forceinline__ void store_tiles(const Chain &chain, Ring &ring, const unsigned char *stages) {
    unsigned lane = threadIdx.x % 32;
    wp_u32 before = kNoTile; // the stage stored before this one, still being read
    for (wp_u32 stage = 0, parity = 0;;) {
        barrier_wait(&ring.full[stage], parity);
        wp_u32 tile = ring.tile[stage];
        if (tile == kNoTile)
            break;
        wp_addr begin = tile_begin(chain, tile);
        warp_pieces(chain, tile, ring.first[stage], [&](const Piece &piece) {
            if (piece.bytes) {
                await_room(chain, piece, tile);
                asm volatile("fence.proxy.async;" ::: "memory");
                bulk_store_mapped(piece.dst, stages + stage * WP_SLIDE_TILE + (piece.src - begin), piece.bytes);
            }
        });
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        // Each lane waits for its own stores but the latest.
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        __syncwarp();
        if (lane == 0 && before != kNoTile)
            barrier_arrive(&ring.empty[before]);
        before = stage;
        if (++stage == chain.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

#endif // __CUDA_ARCH__ >= 900

__global__ void __launch_bounds__(kBulkThreads) slide_bulk(Chain chain) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char shared[];
    Ring &ring = *reinterpret_cast<Ring *>(shared);
    unsigned char *stages = shared + kRingBytes;
    if (threadIdx.x == 0) {
        for (unsigned stage = 0; stage < chain.stages; ++stage) {
            barrier_init(&ring.full[stage], 1);
            barrier_init(&ring.empty[stage], 2); // flagged and stored
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    switch (threadIdx.x / 32) {
    case 0:
        load_tiles(chain, ring, stages);
        break;
    case 1:
        if (threadIdx.x == 32)
            flag_tiles(chain, ring);
        break;
    default:
        store_tiles(chain, ring, stages);
    }
#endif
}

} // namespace wp

#endif // WARPOOL_DEVICE_CHAIN_BULK_CUH
