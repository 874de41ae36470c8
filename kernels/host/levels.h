/*
 * levels.h: the instruction sets that the host kernels are compiled for, and the choice among them.
 *
 * The element code is compiled for the baseline, for AVX2 and for AVX-512; the widest that the
 * processor has is used. All return the same bits.
 */
#ifndef WARPOOL_LEVELS_H
#define WARPOOL_LEVELS_H

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define WP_AVX2 __attribute__((target("avx2,f16c,fma")))
#define WP_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma,prefer-vector-width=512")))
#endif

namespace wp {

enum Level { BASELINE = 0, AVX2 = 1, AVX512 = 2 };

#if defined(__x86_64__)
/* The widest level that both the processor and the operating system support. */
inline Level detect_level() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return BASELINE;
    const bool wide_state = (c & bit_OSXSAVE) && (c & bit_AVX) && (c & bit_F16C) && (c & bit_FMA);
    if (!wide_state) return BASELINE;
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return BASELINE;
    const unsigned wanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    return (low & 0xE6) == 0xE6 && (b & wanted) == wanted ? AVX512 : AVX2;
}
#else
inline Level detect_level() { return BASELINE; }
#endif

inline Level level() {
    static int known = -1; /* only ever written with one value, so a race is harmless */
    int now = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (now < 0) {
        now = detect_level();
        __atomic_store_n(&known, now, __ATOMIC_RELAXED);
    }
    return (Level)now;
}

}  // namespace wp

#endif /* WARPOOL_LEVELS_H */
