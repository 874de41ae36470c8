// Entry points of the operations that move live data: batched moves, slides, the pointer patch and
// scattered stores. Each checks its arguments, sizes its grid and launches; the kernels are in
// device/move_batch.cuh, device/chain*.cuh and device/move_patch.cuh.
#include <cuda_runtime.h>

#include "device/chain_bulk.cuh"
#include "device/chain_plain.cuh"
#include "device/launch.cuh"
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

// Whether the current device differs from the one that chain_bulk.cuh was measured on.
cudaError_t needs_fences(bool &fenced) {
    int major = 0, minor = 0;
    cudaError_t error = wp::device_attribute(cudaDevAttrComputeCapabilityMajor, major);
    if (error == cudaSuccess)
        error = wp::device_attribute(cudaDevAttrComputeCapabilityMinor, minor);
    fenced = major != 9 || minor != 0;
    return error;
}

// Blocks of `kernel` that the device holds at once: at least one, and at most `most`, per
// multiprocessor.
template <class Kernel>
cudaError_t resident_blocks(Kernel kernel, unsigned threads, unsigned shared, int most, wp_u64 &blocks) {
    int processors = 0, resident = 0;
    cudaError_t error = wp::device_attribute(cudaDevAttrMultiProcessorCount, processors);
    wp::bound(processors, wp::bounds.processors);
    if (error == cudaSuccess)
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(threads), shared);
    resident = resident < most ? resident : most;
    blocks = static_cast<wp_u64>(processors) * static_cast<wp_u64>(resident > 0 ? resident : 1);
    return error;
}

// The warps of a bounded launch's block, each with `stage` bytes of shared memory: `most`, or as
// many as fit into a block.
cudaError_t bounded_warps(unsigned stage, unsigned most, unsigned &warps) {
    int room = 0;
    cudaError_t error = wp::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, room);
    warps = static_cast<unsigned>(room) / stage;
    warps = warps < most ? warps : most;
    return error;
}

// Allows blocks of `kernel` the shared memory of those warps.
template <class Kernel> cudaError_t ready_bounded(Kernel kernel, unsigned stage, unsigned most) {
    unsigned warps = 0;
    cudaError_t error = bounded_warps(stage, most, warps);
    return error != cudaSuccess ? error : wp::allow_shared(reinterpret_cast<const void *>(kernel), warps * stage);
}

template <bool FENCED>
int slide_in_bulk(const wp::Chain &chain, wp_u32 max_blocks, void *stream) {
    constexpr unsigned stage = sizeof(wp::SlideStage);
    constexpr auto kernel = wp::slide_bulk<FENCED>;
    unsigned warps = 1;
    wp_u64 blocks = max_blocks;
    cudaError_t error = cudaSuccess;
    if (max_blocks != 0)
        error = bounded_warps(stage, wp::kSlideWarps, warps);
    else
        error = resident_blocks(kernel, 32, stage, chain.count > 1 ? 32 : wp::kLoneMoveBlocks, blocks);
    if (error != cudaSuccess)
        return error;
    wp_u64 enough = blocks_for(chain.tiles, warps);
    return wp::launch_shared<kernel>(blocks < enough ? blocks : enough, warps * 32, warps * stage, stream, chain);
}

int slide_plainly(const wp::Chain &chain, wp_u32 max_blocks, void *stream) {
    wp_u64 blocks = 0;
    cudaError_t error = resident_blocks(wp::slide_plain, wp::kPlainThreads, 0, 32, blocks);
    if (error != cudaSuccess)
        return error;
    blocks = blocks < chain.tiles ? blocks : chain.tiles;
    return wp::launch<wp::slide_plain>(bounded_grid(blocks, max_blocks), wp::kPlainThreads, stream, chain);
}

} // namespace

namespace wp {

// Bounded launches fail on a device where this has not run: wp_cuda_load calls it.
cudaError_t ready_moves() {
    cudaError_t error = ready_bounded(move_batch_bounded, sizeof(TileStage), kBoundedWarps);
    if (error == cudaSuccess)
        error = ready_bounded(slide_bulk<false>, sizeof(SlideStage), kSlideWarps);
    if (error == cudaSuccess)
        error = ready_bounded(slide_bulk<true>, sizeof(SlideStage), kSlideWarps);
    return error;
}

} // namespace wp

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
    if (batch.jobs == 0)
        return cudaSuccess;
    if (args->max_blocks == 0 && batch.jobs <= kMaxGrid)
        return wp::launch<wp::move_batch>(batch.jobs, 32, stream, batch);
    unsigned warps = 0;
    cudaError_t error = bounded_warps(sizeof(wp::TileStage), wp::kBoundedWarps, warps);
    if (error != cudaSuccess)
        return error;
    return wp::launch_shared<wp::move_batch_bounded>(bounded_grid(blocks_for(batch.jobs, warps), args->max_blocks),
                             warps * 32, warps * sizeof(wp::TileStage), stream, batch);
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
    wp::Code code = {};
    bool fenced = args->fenced != 0;
    cudaError_t error = wp::code_of<wp::slide_bulk<false>>(code);
    if (error == cudaSuccess && !fenced)
        error = needs_fences(fenced);
    if (error != cudaSuccess)
        return error;
    int marked = wp::launch<wp::mark_tiles>(blocks_for(tiles, wp::kMarkThreads), wp::kMarkThreads, stream, chain);
    if (marked != WP_OK)
        return marked;
    if (code.capability < 90)
        return slide_plainly(chain, args->max_blocks, stream);
    return fenced ? slide_in_bulk<true>(chain, args->max_blocks, stream)
                  : slide_in_bulk<false>(chain, args->max_blocks, stream);
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
    return wp::launch<wp::patch_slots_in_ranges>(bounded_grid(blocks < most ? blocks : most, args->max_blocks),
                      wp::kPatchThreads, stream, patch);
}

extern "C" int wp_cuda_scatter(const wp_scatter *args, void *stream) {
    constexpr unsigned threads = 256;
    if (args->words % 16 != 0)
        return cudaErrorInvalidValue;
    if (args->count == 0)
        return cudaSuccess;
    return wp::launch<wp::scatter_words>(blocks_for(args->count, threads), threads, stream,
                      at<const ulonglong2>(args->words), args->count);
}
