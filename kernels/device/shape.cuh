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
     * A chunk is shared by 128 threads, two groups each: more groups in fewer threads leave more bytes
     * in flight and are slower all the same (measured, 3 to 10 %).
     */
    static constexpr int LANES = 128;
    static constexpr int CHUNK = 2;                           /* groups a lane */
    static constexpr int TILE = V * CHUNK * LANES;            /* elements of a chunk */
};

/* How many elements before the row the aligned destination group that holds its first one begins. */
template <class S, class D>
WP_HD unsigned phase_of(u64 dst) {
    return (unsigned)(dst / (D::SIZE / 8)) % Shape<S, D>::V;
}

}  // namespace wp

#endif /* WARPOOL_SHAPE_CUH */
