/*
 * shape.cuh: how many elements a thread and a chunk hold.
 *
 * A group makes the wider of the two formats fill 16 bytes, so that a warp's stores fill whole lines:
 * 16-byte loads of the narrower one would need two stores a thread, each leaving half of every line
 * to the other, at half the rate.
 */
#ifndef WARPOOL_SHAPE_CUH
#define WARPOOL_SHAPE_CUH

#include "element.cuh"

namespace wp {

constexpr unsigned CONVERT_THREADS = 256;

template <class S, class D>
struct Shape {
    static constexpr int WIDER = S::SIZE > D::SIZE ? S::SIZE : D::SIZE;
    static constexpr int V = 128 / WIDER;                     /* elements a group */
    static constexpr int U = D::SIZE >= S::SIZE ? 1 : 2;      /* groups a thread (measured) */
    /*
     * A chunk is a warp's share: eight groups a lane, four under way at once. Four warps with two groups
     * each were 7 to 25 % slower, one warp with all eight under way 2 to 4 % (measured). Where the source
     * is not aligned, three at once leave registers for 32 warps without a spill; two were 6 % slower,
     * four 3 % slower in tables.
     */
    static constexpr int LANES = 32;
    static constexpr int CHUNK = 8;                           /* groups a lane */
    /* Groups of 16, of two 8-bit formats, need twice the registers. */
    static constexpr int UNROLL = V > 8 ? 2 : 4;              /* of these under way */
    static constexpr int UNROLL_SHIFTED = V > 8 ? 1 : 3;      /* where the source is not aligned */
    static constexpr int TILE = V * CHUNK * LANES;            /* elements of a chunk */
};

/* How many elements before the row the aligned destination group that holds its first one begins. */
template <class S, class D>
WP_HD unsigned phase_of(u64 dst) {
    return (unsigned)(dst / (D::SIZE / 8)) % Shape<S, D>::V;
}

}  // namespace wp

#endif /* WARPOOL_SHAPE_CUH */
