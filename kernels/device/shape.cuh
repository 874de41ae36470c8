/*
 * shape.cuh: how many elements a thread and a warp convert at once.
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
    static constexpr int UNROLL = 4;                          /* groups a lane has under way in a chunk */
    static constexpr int CHUNK = 8;                           /* groups a lane in a chunk, a warp's share */
    static constexpr int TILE = V * CHUNK * 32;               /* elements of a chunk */
};

/* How many elements before the row the aligned destination group that holds its first one begins. */
template <class S, class D>
WP_HD unsigned phase_of(u64 dst) {
    return (unsigned)(dst / (D::SIZE / 8)) % Shape<S, D>::V;
}

}  // namespace wp

#endif /* WARPOOL_SHAPE_CUH */
