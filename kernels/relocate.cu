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
constexpr unsigned kBulkBlocks = 2; // blocks of the bulk chain a multiprocessor holds

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

// As many stages as let kBulkBlocks blocks share a multiprocessor; below two the chain cannot run.
cudaError_t bulk_stages(unsigned &stages) {
    int shared = 0, reserved = 0;
    cudaError_t error = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, shared);
    if (error == cudaSuccess)
        error = device_attribute(cudaDevAttrReservedSharedMemoryPerBlock, reserved);
    int room = shared / static_cast<int>(kBulkBlocks) - reserved - static_cast<int>(wp::kRingBytes);
    stages = room > 0 ? static_cast<unsigned>(room) / WP_SLIDE_TILE : 0;
    if (stages > wp::kMaxStages)
        stages = wp::kMaxStages;
    return error;
}

// Whether the kernel loaded for this device was compiled with bulk copies.
cudaError_t has_bulk_copies(bool &bulk) {
    cudaFuncAttributes attributes = {};
    cudaError_t error = cudaFuncGetAttributes(&attributes, wp::slide_bulk);
    bulk = attributes.ptxVersion >= 90;
    return error;
}

template <class Kernel>
cudaError_t launch_chain(Kernel kernel, const wp::Chain &chain, unsigned threads, unsigned shared, wp_u32 max_blocks,
                         cudaStream_t stream) {
    int processors = 0, resident = 0;
    cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, processors);
    if (error == cudaSuccess && shared > 0)
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(threads), shared);
    if (error != cudaSuccess)
        return error;
    wp_u64 blocks = static_cast<wp_u64>(processors) * static_cast<wp_u64>(resident > 0 ? resident : 1);
    if (blocks > chain.tiles)
        blocks = chain.tiles;
    kernel<<<bounded_grid(blocks, max_blocks), threads, shared, stream>>>(chain);
    return cudaGetLastError();
}

} // namespace

extern "C" int wp_cuda_relocate(const wp_relocate *args, void *stream) {
    wp::Batch batch = {};
    batch.moves = at<const uint4>(args->moves);
    batch.first_tile = at<const wp_u32>(args->first_tile);
    batch.group_move = at<const wp_u32>(args->group_move);
    batch.small = args->small;
    batch.medium = args->medium;
    batch.large = static_cast<wp_u32>(args->large);
    batch.tiles = args->tiles;
    batch.medium_blocks = blocks_for(args->medium, wp::kMoveThreads / 32);
    constexpr unsigned small_a_block = wp::kMoveThreads / wp::kSmallLanes * wp::kSmallMoves;
    batch.blocks = batch.tiles + batch.medium_blocks + blocks_for(args->small, small_a_block);
    if (args->moves % 16 != 0 || args->large > args->tiles)
        return cudaErrorInvalidValue;
    if (batch.blocks == 0)
        return cudaSuccess;
    unsigned grid = bounded_grid(batch.blocks, args->max_blocks);
    auto kernel = grid < batch.blocks ? wp::move_batch_bounded : wp::move_batch;
    kernel<<<grid, wp::kMoveThreads, 0, static_cast<cudaStream_t>(stream)>>>(batch);
    return cudaGetLastError();
}

extern "C" int wp_cuda_slide(const wp_slide *args, void *stream) {
    if (args->lo % WP_SLIDE_TILE != 0 || args->hi < args->lo || args->scratch % 16 != 0)
        return cudaErrorInvalidValue;
    wp_u64 tiles = blocks_for(args->hi - args->lo, WP_SLIDE_TILE);
    if (tiles >= wp::kNoTile)
        return cudaErrorInvalidValue;
    if (tiles == 0 || args->count == 0)
        return cudaSuccess;
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    cudaError_t error = cudaMemsetAsync(at<void>(args->scratch), 0, WP_SLIDE_SCRATCH(args->lo, args->hi), queue);
    bool bulk = false;
    unsigned stages = 0;
    if (error == cudaSuccess)
        error = has_bulk_copies(bulk);
    if (error == cudaSuccess)
        error = bulk_stages(stages);
    if (error != cudaSuccess)
        return error;
    wp::Chain chain = {};
    chain.moves = at<const wp_move>(args->moves);
    chain.lo = args->lo;
    chain.ticket = at<wp_u32>(args->scratch);
    chain.loaded = at<wp_u32>(args->scratch + 64);
    chain.count = args->count;
    chain.tiles = static_cast<wp_u32>(tiles);
    chain.upward = args->upward;
    chain.stages = stages;
    if (bulk && stages >= 2)
        return launch_chain(wp::slide_bulk, chain, wp::kBulkThreads, wp::bulk_shared_bytes(stages), args->max_blocks,
                            queue);
    return launch_chain(wp::slide_plain, chain, wp::kPlainThreads, 0, args->max_blocks, queue);
}

extern "C" int wp_cuda_patch(const wp_patch *args, void *stream) {
    if (args->slots % 8 != 0 || args->ranges % 8 != 0)
        return cudaErrorInvalidValue;
    if (args->slot_count == 0 || args->range_count == 0)
        return cudaSuccess;
    wp::Patch patch = {at<wp_u64>(args->slots), args->slot_count, at<const wp_move>(args->ranges), args->range_count};
    int processors = 0, resident = 0;
    cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, processors);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, wp::patch_slots_in_ranges, wp::kPatchThreads,
                                                              0);
    if (error != cudaSuccess)
        return error;
    wp_u64 blocks = blocks_for(args->slot_count, wp::kPatchThreads * wp::kPatchSlots);
    wp_u64 most = static_cast<wp_u64>(processors) * static_cast<wp_u64>(resident > 0 ? resident : 1);
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
