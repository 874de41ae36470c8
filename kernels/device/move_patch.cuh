// Pointer patch: every slot that points into a moved range is rewritten.
//
// A slot needs the last range that begins at or below it. The first kTreeLevels levels of that
// search run over splitters in shared memory, laid out level by level (children of k at 2k and
// 2k + 1) so that the lanes of a warp spread over the banks; a sorted array would send the middle
// levels, which are powers of two apart, to one bank. The rest, a few levels, runs over the table
// itself, which the L2 cache holds.
#ifndef WARPOOL_DEVICE_MOVE_PATCH_CUH
#define WARPOOL_DEVICE_MOVE_PATCH_CUH

#include "device/in_order.cuh"
#include "device/move.cuh"

namespace wp {

constexpr unsigned kPatchThreads = 512;
constexpr unsigned kTreeLevels = 12;
constexpr unsigned kLeaves = 1u << kTreeLevels; // 32 KiB of splitters per block
constexpr unsigned kPatchSlots = 4;             // slots that a thread searches for at once

struct Patch {
    wp_u64 *slots;
    wp_u64 count;
    const wp_move *ranges;
    wp_u32 range_count;
};

// The start of leaf `leaf` of the tree in the table.
__device__ __forceinline__ wp_u32 leaf_begin(wp_u32 leaf, wp_u32 range_count) {
    return static_cast<wp_u32>(wp_u64{leaf} * range_count >> kTreeLevels);
}

__device__ __forceinline__ void build_tree(const Patch &patch, wp_u64 *tree) {
    for (unsigned node = threadIdx.x; node < kLeaves; node += kPatchThreads) {
        if (node == 0)
            continue;
        unsigned level = 31 - __clz(node);
        unsigned position = node - (1u << level);
        unsigned leaf = (2 * position + 1) << (kTreeLevels - 1 - level);
        tree[node] = __ldg(&patch.ranges[leaf_begin(leaf, patch.range_count)].src);
    }
    __syncthreads();
}

// The new values of `kPatchSlots` slots, searched for at the same time to hide latency.
__device__ __forceinline__ void patch_slots(const Patch &patch, const wp_u64 *tree, wp_u64 (&slots)[kPatchSlots]) {
    wp_u32 low[kPatchSlots], size[kPatchSlots];
#pragma unroll
    for (unsigned s = 0; s < kPatchSlots; ++s)
        low[s] = 1;
#pragma unroll
    for (unsigned level = 0; level < kTreeLevels; ++level)
#pragma unroll
        for (unsigned s = 0; s < kPatchSlots; ++s)
            low[s] = 2 * low[s] + (tree[low[s]] <= slots[s]);
#pragma unroll
    for (unsigned s = 0; s < kPatchSlots; ++s) {
        wp_u32 leaf = low[s] - kLeaves;
        low[s] = leaf_begin(leaf, patch.range_count);
        size[s] = leaf_begin(leaf + 1, patch.range_count) - low[s];
    }
    // Leaves differ in size by one, so all slots take the same number of rounds but for one.
    for (bool busy = true; busy;) {
        busy = false;
#pragma unroll
        for (unsigned s = 0; s < kPatchSlots; ++s) {
            if (size[s] <= 1)
                continue;
            wp_u32 half = size[s] / 2;
            bool right = __ldg(&patch.ranges[low[s] + half].src) <= slots[s];
            low[s] += right ? half : 0;
            size[s] = right ? size[s] - half : half;
            busy |= size[s] > 1;
        }
    }
#pragma unroll
    for (unsigned s = 0; s < kPatchSlots; ++s) {
        const wp_move *range = patch.ranges + low[s];
        wp_move found = {__ldg(&range->src), __ldg(&range->dst), __ldg(&range->bytes)};
        slots[s] = patched(slots[s], found);
    }
}

// A row of a block's slots has 32 adjacent ones per warp, and a thread takes `kPatchSlots` rows at
// a time, so that whole lines are read for every alignment of the array.
__global__ void __launch_bounds__(kPatchThreads, 2) patch_slots_in_ranges(Patch patch) {
    begin_in_order();
    __shared__ wp_u64 tree[kLeaves];
    build_tree(patch, tree);
    constexpr wp_u64 chunk = kPatchThreads * kPatchSlots;
    wp_u64 lowest = __ldg(&patch.ranges[0].src);
    const wp_move *top = patch.ranges + patch.range_count - 1;
    wp_u64 end = __ldg(&top->src) + __ldg(&top->bytes);
    for (wp_u64 base = blockIdx.x * chunk; base < patch.count; base += gridDim.x * chunk) {
        wp_u64 old[kPatchSlots], now[kPatchSlots];
        bool inside = false;
#pragma unroll
        for (unsigned s = 0; s < kPatchSlots; ++s) {
            wp_u64 index = base + s * kPatchThreads + threadIdx.x;
            old[s] = index < patch.count ? __ldcs(patch.slots + index) : 0;
            now[s] = old[s];
            inside |= old[s] >= lowest && old[s] < end;
        }
        if (!inside)
            continue;
        patch_slots(patch, tree, now);
#pragma unroll
        for (unsigned s = 0; s < kPatchSlots; ++s)
            if (now[s] != old[s])
                __stcs(patch.slots + (base + s * kPatchThreads + threadIdx.x), now[s]);
    }
}

__global__ void scatter_words(const ulonglong2 *words, wp_u64 count) {
    begin_in_order();
    wp_u64 index = wp_u64{blockIdx.x} * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    ulonglong2 word = __ldg(words + index);
    *reinterpret_cast<wp_u64 *>(word.x) = word.y;
}

} // namespace wp

#endif // WARPOOL_DEVICE_MOVE_PATCH_CUH
