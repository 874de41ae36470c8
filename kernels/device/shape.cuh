/*
 * shape.cuh: how many elements a thread and a chunk hold.
 *
 * The wider of the two formats fills the 16 bytes of a group, so that a warp's stores fill whole
 * lines. With 16-byte loads of the narrower one, each thread would store twice, each time half of
 * every line, at half the rate.
 */
#ifndef WARPOOL_SHAPE_CUH
#define WARPOOL_SHAPE_CUH

#include "element.cuh"

namespace wp {

constexpr unsigned CONVERT_THREADS = 256;

template <class S, class D>
struct Shape {
    static constexpr int WIDER = S::SIZE > D::SIZE ? S::SIZE : D::SIZE;
    static constexpr int V = 128 / WIDER;                     /* elements per group */
    static constexpr int U = D::SIZE >= S::SIZE ? 1 : 2;      /* groups per thread (measured) */
    /*
     * A chunk is a warp's share: eight groups per lane, four in flight at once. Four warps with two
     * groups each were 7 to 25 % slower, one warp with all eight in flight 2 to 4 % (measured). If the
     * source is not aligned, three at once leave registers for 32 warps without a spill; two were 6 %
     * slower, four 3 % slower in tables.
     */
    static constexpr int LANES = 32;
    static constexpr int CHUNK = 8;                           /* groups per lane */
    /* Groups of 16 elements, between two 8-bit formats, need twice the registers. */
    static constexpr int UNROLL = V > 8 ? 2 : 4;              /* of these in flight */
    static constexpr int UNROLL_SHIFTED = V > 8 ? 1 : 3;      /* if the source is not aligned */
    static constexpr int TILE = V * CHUNK * LANES;            /* elements of a chunk */
};

/*
 * The number of elements between the start of the aligned destination group and the row's first
 * element in it.
 */
template <class S, class D>
WP_HD unsigned phase_of(u64 dst) {
    return (unsigned)(dst / (D::SIZE / 8)) % Shape<S, D>::V;
}

}  // namespace wp

#endif /* WARPOOL_SHAPE_CUH */
