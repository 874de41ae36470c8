// Entry points of the operations that move live data: batched moves, slides, the pointer patch and
// scattered stores. Each checks its arguments, sizes its grid and launches; the work itself is in
// device/move_batch.cuh, device/chain*.cuh and device/move_patch.cuh.
#include <cuda_runtime.h>

#include "device/chain_bulk.cuh"
#include "device/chain_plain.cuh"
#include "device/move_batch.cuh"
#include "device/move_patch.cuh"

namespace {

constexpr wp_u64 kMaxGrid = 0x7FFFFFFF;

template <class T> T *at(wp_addr addr) {
    return reinterpret_cast<T *>(addr);
}

wp_u64 blocks_for(wp_u64 work, wp_u64 a_block) {
    return (work + a_block - 1) / a_block;
}

unsigned bounded_grid(wp_u64 blocks, wp_u32 max_blocks) {
    wp_u64 bound = max_blocks ? max_blocks : kMaxGrid;
    return static_cast<unsigned>(blocks < bound ? blocks : bound);
}

cudaError_t device_attribute(cudaDeviceAttr attribute, int &value) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    return error != cudaSuccess ? error : cudaDeviceGetAttribute(&value, attribute, device);
}

// Whether the kernel loaded for this device was compiled with bulk copies.
cudaError_t has_bulk_copies(bool &bulk) {
    cudaFuncAttributes attributes = {};
    cudaError_t error = cudaFuncGetAttributes(&attributes, wp::slide_bulk);
    bulk = attributes.ptxVersion >= 90;
    return error;
}

// Blocks of `kernel` that the device holds at once, at least one and at most `most` a multiprocessor.
template <class Kernel>
cudaError_t resident_blocks(Kernel kernel, unsigned threads, unsigned shared, int most, wp_u64 &blocks) {
    int processors = 0, resident = 0;
    cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, processors);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(threads), shared);
    resident = resident < most ? resident : most;
    blocks = static_cast<wp_u64>(processors) * static_cast<wp_u64>(resident > 0 ? resident : 1);
    return error;
}

// The warps of a bounded launch's block, each with `stage` bytes of shared memory: `most`, or as
// many as a block has room for. Readies `kernel` for them.
template <class Kernel> cudaError_t bounded_warps(Kernel kernel, unsigned stage, unsigned most, unsigned &warps) {
    int room = 0;
    cudaError_t error = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, room);
    warps = static_cast<unsigned>(room) / stage;
    warps = warps < most ? warps : most;
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(warps * stage));
    return error;
}

cudaError_t slide_in_bulk(const wp::Chain &chain, wp_u32 max_blocks, cudaStream_t stream) {
    constexpr unsigned stage = sizeof(wp::SlideStage);
    unsigned warps = 1;
    wp_u64 blocks = max_blocks;
    cudaError_t error = cudaSuccess;
    if (max_blocks != 0)
        error = bounded_warps(wp::slide_bulk, stage, wp::kSlideWarps, warps);
    else
        error = resident_blocks(wp::slide_bulk, 32, stage, chain.count > 1 ? 32 : wp::kLoneMoveBlocks, blocks);
    if (error != cudaSuccess)
        return error;
    wp_u64 enough = blocks_for(chain.tiles, warps);
    wp::slide_bulk<<<static_cast<unsigned>(blocks < enough ? blocks : enough), warps * 32, warps * stage, stream>>>(
        chain);
    return cudaGetLastError();
}

cudaError_t slide_plainly(const wp::Chain &chain, wp_u32 max_blocks, cudaStream_t stream) {
    wp_u64 blocks = 0;
    cudaError_t error = resident_blocks(wp::slide_plain, wp::kPlainThreads, 0, 32, blocks);
    if (error != cudaSuccess)
        return error;
    blocks = blocks < chain.tiles ? blocks : chain.tiles;
    wp::slide_plain<<<bounded_grid(blocks, max_blocks), wp::kPlainThreads, 0, stream>>>(chain);
    return cudaGetLastError();
}

} // namespace

extern "C" int wp_cuda_relocate(const wp_relocate *args, void *stream) {
    wp::Batch batch = {};
    batch.moves = at<const uint4>(args->moves);
    batch.first_tile = at<const wp_u32>(args->first_tile);
    batch.group_move = at<const wp_u32>(args->group_move);
    batch.small = args->small;
    batch.large = static_cast<wp_u32>(args->large);
    batch.tiles = args->tiles;
    batch.jobs = batch.tiles + blocks_for(args->small, wp::kSmallJob);
    if (args->moves % 16 != 0 || args->large > args->tiles)
        return cudaErrorInvalidValue;
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    if (batch.jobs == 0)
        return cudaSuccess;
    if (args->max_blocks == 0 && batch.jobs <= kMaxGrid) {
        wp::move_batch<<<static_cast<unsigned>(batch.jobs), 32, 0, queue>>>(batch);
        return cudaGetLastError();
    }
    unsigned warps = 0;
    cudaError_t error = bounded_warps(wp::move_batch_bounded, sizeof(wp::TileStage), wp::kBoundedWarps, warps);
    if (error != cudaSuccess)
        return error;
    wp::move_batch_bounded<<<bounded_grid(blocks_for(batch.jobs, warps), args->max_blocks), warps * 32,
                             warps * sizeof(wp::TileStage), queue>>>(batch);
    return cudaGetLastError();
}

extern "C" int wp_cuda_slide(const wp_slide *args, void *stream) {
    if (args->lo % WP_SLIDE_TILE != 0 || args->hi < args->lo || args->scratch % 16 != 0)
        return cudaErrorInvalidValue;
    wp_u64 tiles = blocks_for(args->hi - args->lo, WP_SLIDE_TILE);
    if (tiles >= wp::kNoTile || args->count >= wp::kLoaded)
        return cudaErrorInvalidValue;
    if (tiles == 0 || args->count == 0)
        return cudaSuccess;
    wp::Chain chain = {};
    chain.moves = at<const wp_move>(args->moves);
    chain.lo = args->lo;
    chain.ticket = at<wp_u32>(args->scratch);
    chain.words = at<wp_u32>(args->scratch + 64);
    chain.count = args->count;
    chain.tiles = static_cast<wp_u32>(tiles);
    chain.upward = args->upward;
    bool bulk = false;
    cudaError_t error = has_bulk_copies(bulk);
    if (error != cudaSuccess)
        return error;
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    wp::mark_tiles<<<static_cast<unsigned>(blocks_for(tiles, wp::kMarkThreads)), wp::kMarkThreads, 0, queue>>>(chain);
    error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    return bulk ? slide_in_bulk(chain, args->max_blocks, queue) : slide_plainly(chain, args->max_blocks, queue);
}

extern "C" int wp_cuda_patch(const wp_patch *args, void *stream) {
    if (args->slots % 8 != 0 || args->ranges % 8 != 0)
        return cudaErrorInvalidValue;
    if (args->slot_count == 0 || args->range_count == 0)
        return cudaSuccess;
    wp::Patch patch = {at<wp_u64>(args->slots), args->slot_count, at<const wp_move>(args->ranges), args->range_count};
    wp_u64 most = 0;
    cudaError_t error = resident_blocks(wp::patch_slots_in_ranges, wp::kPatchThreads, 0, 32, most);
    if (error != cudaSuccess)
        return error;
    wp_u64 blocks = blocks_for(args->slot_count, wp::kPatchThreads * wp::kPatchSlots);
    wp::patch_slots_in_ranges<<<bounded_grid(blocks < most ? blocks : most, args->max_blocks), wp::kPatchThreads, 0,
                                static_cast<cudaStream_t>(stream)>>>(patch);
    return cudaGetLastError();
}

extern "C" int wp_cuda_scatter(const wp_scatter *args, void *stream) {
    constexpr unsigned threads = 256;
    if (args->words % 16 != 0)
        return cudaErrorInvalidValue;
    if (args->count == 0)
        return cudaSuccess;
    wp::scatter_words<<<static_cast<unsigned>(blocks_for(args->count, threads)), threads, 0,
                        static_cast<cudaStream_t>(stream)>>>(at<const ulonglong2>(args->words), args->count);
    return cudaGetLastError();
}

extern "C" int wp_cuda_load_relocate(void) {
    const void *kernels[] = {
        reinterpret_cast<const void *>(wp::move_batch),
        reinterpret_cast<const void *>(wp::move_batch_bounded),
        reinterpret_cast<const void *>(wp::mark_tiles),
        reinterpret_cast<const void *>(wp::slide_bulk),
        reinterpret_cast<const void *>(wp::slide_plain),
        reinterpret_cast<const void *>(wp::patch_slots_in_ranges),
        reinterpret_cast<const void *>(wp::scatter_words),
    };
    for (const void *kernel : kernels) {
        cudaFuncAttributes attributes;
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}
