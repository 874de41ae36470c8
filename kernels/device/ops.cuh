/*
 * ops.cuh: the operation that a conversion kernel applies to its elements.
 *
 * An operation has
 *   FLAT_GROUP, FLAT    elements per group and groups per thread if both sides are aligned;
 *   CHUNKS              otherwise the number of chunks of Shape that the threads of one do;
 *   RESIDENT            blocks per multiprocessor, which limits the registers;
 *   LIGHT               whether, if aligned, more threads are worth more than registers;
 *   LONG                whether a group's code is so long that loops over groups are not unrolled;
 *   begin()             called once by every thread before the first element;
 *   group(x, y, index, whole)  a group of adjacent elements, the first with number `index`; unless
 *                       `whole`, only the first counts;
 *   one(x, index)       one element outside whole groups; not for a LONG operation;
 *   finish(tensor, own) called once by whole blocks, after the last element; `own` if every warp of
 *                       the block may have a different tensor.
 */
#ifndef WARPOOL_OPS_CUH
#define WARPOOL_OPS_CUH

#include "fuse.cuh"
#include "hardware_modes.cuh"
#include "philox.cuh"
#include "shape.cuh"

namespace wp {

/* 16 bits for each of V adjacent elements, two per word; `index` is any number. */
template <int V>
__device__ __forceinline__ void philox_pairs(u32 (&pairs)[V / 2], u64 seed, u64 index) {
    static_assert(V <= 8, "a group is at most what one call of the generator yields");
    const unsigned off = (unsigned)index & 7;
    const Words4 first = philox(seed, index / 8);
    u32 all[8] = {first.v[0], first.v[1], first.v[2], first.v[3]};
    if (off + V > 8) {
        const Words4 second = philox(seed, index / 8 + 1);
#pragma unroll
        for (int i = 0; i < 4; i++) all[4 + i] = second.v[i];
    }
    /* Shifted by selects, because an index would put the words into local memory. */
#pragma unroll
    for (int i = 0; i < V / 2 + 2; i++) all[i] = off & 4 ? all[i + 2] : all[i];
#pragma unroll
    for (int i = 0; i < V / 2 + 1; i++) all[i] = off & 2 ? all[i + 1] : all[i];
#pragma unroll
    for (int i = 0; i < V / 2; i++) pairs[i] = off & 1 ? __funnelshift_r(all[i], all[i + 1], 16) : all[i];
}

/* The same for any even V, eight at a time. */
template <int V>
__device__ __forceinline__ void philox_all(u32 (&pairs)[V / 2], u64 seed, u64 index) {
    if constexpr (V <= 8) {
        philox_pairs<V>(pairs, seed, index);
    } else {
#pragma unroll
        for (int from = 0; from < V; from += 8) {
            u32 eight[4];
            philox_pairs<8>(eight, seed, index + from);
#pragma unroll
            for (int i = 0; i < 4; i++) pairs[from / 2 + i] = eight[i];
        }
    }
}

/* Two adjacent elements in a mode other than nearest. */
template <class S, class D, class Mode>
__device__ __forceinline__ void round_two(const typename S::Bits *x, typename D::Bits *y, const Mode &mode,
                                          bool saturate, u32 random) {
    if constexpr (SAME<S, F32>) {
        two_by_mode<D>(x, y, mode, saturate, random);
    } else if constexpr (!SAME<S, F64>) {
        u32 wide[2];
        Hardware<S, F32>::two(x, wide, false);
        two_by_mode<D>(wide, y, mode, saturate, random);
    } else if constexpr (!Mode::RANDOM && !SAME<D, F32>) {
        const u32 wide[2] = {cut_f64(x[0], mode), cut_f64(x[1], mode)};
        two_by_mode<D>(wide, y, mode, saturate, random);
    } else {
        y[0] = element<S, D>(x[0], mode, saturate, random & 0xFFFF);
        y[1] = element<S, D>(x[1], mode, saturate, random >> 16);
    }
}

/* V elements in one mode. */
template <class S, class D, int V, class Mode>
__device__ __forceinline__ void convert_all(const typename S::Bits (&x)[V], typename D::Bits (&y)[V],
                                            const Mode &mode, bool saturate, u64 seed, u64 index) {
    if constexpr (SAME<S, D>) {
#pragma unroll
        for (int i = 0; i < V; i++) y[i] = x[i];
    } else if constexpr (EXACT<S, D> || SAME_MODE<Mode, Nearest>) {
#pragma unroll
        for (int i = 0; i < V; i += 2) Hardware<S, D>::two(x + i, y + i, saturate);
    } else {
        u32 random[V / 2] = {};
        if constexpr (Mode::RANDOM) philox_all<V>(random, seed, index);
#pragma unroll
        for (int i = 0; i < V; i += 2) round_two<S, D>(x + i, y + i, mode, saturate, random[i / 2]);
    }
}

/*
 * One element to nearest, by the code for two: the code of element() is longer and would be needed in
 * addition.
 */
template <class S, class D>
__device__ __forceinline__ typename D::Bits convert_one(typename S::Bits x, bool saturate) {
    const typename S::Bits both[2] = {x, x};
    typename D::Bits y[2];
    Hardware<S, D>::two(both, y, saturate);
    return y[0];
}

/* Only the conversion, with the mode known at compile time. */
template <class S, class D, class Mode>
struct Plain {
    static constexpr int CHUNKS = 1;
    static constexpr bool LIGHT = EXACT<S, D> || SAME_MODE<Mode, Nearest>;
    static constexpr bool LONG = !LIGHT;
    /*
     * If rounding is computed and 8 adjacent elements share a call of the generator, a thread takes
     * them as one group: its stores are then as wide as possible.
     */
    static constexpr int FLAT_GROUP = LIGHT ? Shape<S, D>::V : 8;
    static constexpr int FLAT = LIGHT ? Shape<S, D>::U : 1;
    static constexpr int RESIDENT = LIGHT ? 4 : 3;
    Mode mode;
    bool saturate;
    u64 seed;

    __device__ __forceinline__ void begin() {}

    template <int V>
    __device__ __forceinline__ void group(const typename S::Bits (&x)[V], typename D::Bits (&y)[V], u64 index, bool = true) {
        convert_all<S, D>(x, y, mode, saturate, seed, index);
    }

    __device__ __forceinline__ typename D::Bits one(typename S::Bits x, u64) {
        static_assert(!LONG, "nearest, or exact");
        return convert_one<S, D>(x, saturate);
    }

    __device__ __forceinline__ void finish(u32, bool) {}
};

/*
 * The mode is chosen when the kernel runs; the branch is the same for the whole grid. Without
 * NEAREST, rounding to nearest has its own kernel and does not occur here.
 */
template <class S, class D, bool NEAREST>
struct Chosen {
    static constexpr int CHUNKS = 1;
    static constexpr bool LIGHT = false, LONG = true;
    static constexpr int RESIDENT = 3;
    u32 rounding;
    bool saturate;
    u64 seed;

    __device__ __forceinline__ bool is_nearest() const {
        return EXACT<S, D> || (NEAREST && rounding == WP_NEAREST);
    }

    __device__ __forceinline__ void begin() {}

    template <int V>
    __device__ __forceinline__ void group(const typename S::Bits (&x)[V], typename D::Bits (&y)[V], u64 index, bool = true) const {
        if (is_nearest()) {
            convert_all<S, D>(x, y, Nearest(), saturate, seed, index);
        } else if (rounding == WP_STOCHASTIC) {
            convert_all<S, D>(x, y, Stochastic(), saturate, seed, index);
        } else {
            convert_all<S, D>(x, y, Directed(rounding), saturate, seed, index);
        }
    }

    __device__ __forceinline__ void finish(u32, bool) {}
};

}  // namespace wp

#endif /* WARPOOL_OPS_CUH */
