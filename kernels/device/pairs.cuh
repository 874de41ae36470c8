/* pairs.cuh: selects the code compiled for a pair of formats by their numbers. */
#ifndef WARPOOL_PAIRS_CUH
#define WARPOOL_PAIRS_CUH

#include "formats.cuh"

namespace wp {

template <class S, class Visit>
int with_destination(u32 dst_type, int otherwise, const Visit &visit) {
    switch (dst_type) {
        case WP_F32: return visit(S(), F32());
        case WP_F16: return visit(S(), F16());
        case WP_BF16: return visit(S(), BF16());
        case WP_E4M3: return visit(S(), E4M3());
        case WP_E5M2: return visit(S(), E5M2());
        case WP_F64: return visit(S(), F64());
        default: return otherwise;
    }
}

/* Calls visit(S(), D()) for the two formats; returns `otherwise` if a number is no format. */
template <class Visit>
int with_pair(u32 src_type, u32 dst_type, int otherwise, const Visit &visit) {
    switch (src_type) {
        case WP_F32: return with_destination<F32>(dst_type, otherwise, visit);
        case WP_F16: return with_destination<F16>(dst_type, otherwise, visit);
        case WP_BF16: return with_destination<BF16>(dst_type, otherwise, visit);
        case WP_E4M3: return with_destination<E4M3>(dst_type, otherwise, visit);
        case WP_E5M2: return with_destination<E5M2>(dst_type, otherwise, visit);
        case WP_F64: return with_destination<F64>(dst_type, otherwise, visit);
        default: return otherwise;
    }
}

/* Whether both numbers are formats. */
inline bool are_formats(u32 src_type, u32 dst_type) {
    return with_pair(src_type, dst_type, 0, [](auto, auto) { return 1; }) != 0;
}

}  // namespace wp

#endif /* WARPOOL_PAIRS_CUH */
