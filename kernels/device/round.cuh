/*
 * round.cuh: narrowing in integer arithmetic, one element at a time, without branches.
 *
 * The magnitude of the source is a significand m and a scale. Dropping `shift` bits of m leaves a
 * quotient q and a remainder, and the mode decides by the remainder whether q is raised by one.
 * Adding q to the exponent field carries automatically: from subnormals to normals, from one
 * exponent to the next, and past the largest finite number into overflow, which one comparison
 * detects.
 */
#ifndef WARPOOL_ROUND_CUH
#define WARPOOL_ROUND_CUH

#include "formats.cuh"

namespace wp {

/* To nearest, ties to the even code. */
template <class A, class B>
constexpr bool SAME_MODE = false;
template <class A>
constexpr bool SAME_MODE<A, A> = true;

struct Nearest {
    static constexpr bool RANDOM = false;
    template <class B>
    WP_HD bool up(B q, B rem, int shift, bool, u32) const {
        return rem + (q & 1) > (B)1 << (shift - 1);
    }
    template <class D>
    WP_HD typename D::Bits overflow(bool) const {
        return D::OVERFLOW;
    }
};

/* Away from zero for one sign or both, otherwise toward zero. */
struct Directed {
    static constexpr bool RANDOM = false;
    u32 away_positive, away_negative; /* 0 or 1 */

    WP_HD explicit Directed(u32 rounding) : away_positive(rounding == WP_UP), away_negative(rounding == WP_DOWN) {}

    WP_HD u32 away(bool negative) const { return negative ? away_negative : away_positive; }

    template <class B>
    WP_HD bool up(B, B rem, int, bool negative, u32) const {
        return ((u32)(rem != 0) & away(negative)) != 0;
    }
    template <class D>
    WP_HD typename D::Bits overflow(bool negative) const {
        return away(negative) != 0 ? D::OVERFLOW : D::MAX;
    }
};

/*
 * Up with the probability of the remainder, in steps of 2^-16 of the distance between adjacent
 * values. `random` is 16 bits.
 */
struct Stochastic {
    static constexpr bool RANDOM = true;
    template <class B>
    WP_HD bool up(B, B rem, int shift, bool, u32 random) const {
        const u32 share = (u32)(shift <= 16 ? rem << (16 - shift) : rem >> (shift - 16));
        return (share + random) >> 16 != 0;
    }
    template <class D>
    WP_HD typename D::Bits overflow(bool) const {
        return D::OVERFLOW;
    }
};

/*
 * Converts `x`, bits of S, to bits of D. `random`, 16 bits, is only for Stochastic. With `saturate`, results
 * beyond the largest finite magnitude, infinities included, become that magnitude.
 */
template <class S, class D, class Mode>
WP_HD typename D::Bits narrow(typename S::Bits x, const Mode &mode, bool saturate, u32 random = 0) {
    using B = typename S::Bits;
    constexpr int EMIN = S::BIAS - D::BIAS + 1; /* source exponent of the smallest normal of D */
    constexpr int DROP = S::MAN - D::MAN;
    /* From here on the quotient is 0, and so is the part of the remainder that Stochastic uses. */
    constexpr int MOST = S::MAN + 1 + (Mode::RANDOM ? 16 : 1);
    const B magnitude = x & (B)~S::SIGN;
    const bool negative = (x & S::SIGN) != 0;
    const int field = (int)(magnitude >> S::MAN);
    const B implicit = (B)(field != 0) << S::MAN;
    const B m = (magnitude & (((B)1 << S::MAN) - 1)) | implicit;
    const int exponent = field != 0 ? field : 1;
    const int below = EMIN > exponent ? EMIN - exponent : 0;
    const int shift = DROP + below < MOST ? DROP + below : MOST;
    const B base = (B)(exponent > EMIN ? exponent - EMIN : 0) << D::MAN;
    const B q = MOST < S::SIZE || shift < S::SIZE ? m >> (shift & (S::SIZE - 1)) : 0;
    const B rem = m - (q << (shift & (S::SIZE - 1)));
    B code = base + q + (B)mode.up(q, rem, shift, negative, random);
    const B infinite = saturate ? D::MAX : D::OVERFLOW;
    const B beyond = saturate ? D::MAX : mode.template overflow<D>(negative);
    code = code > D::MAX ? beyond : code;
    code = magnitude == S::OVERFLOW ? infinite : code;
    code |= negative ? D::SIGN : 0;
    return (typename D::Bits)(magnitude > S::OVERFLOW ? D::QNAN : code);
}

}  // namespace wp

#endif /* WARPOOL_ROUND_CUH */
