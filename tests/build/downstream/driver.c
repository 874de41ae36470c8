/*
 * A libcuda.so.1 for tests/downstream.rs: each function answers with a number that depends on every
 * argument and its position, or with 1 where the stack is not aligned as the ABI wants it.
 */
#include <stdint.h>

static int misaligned(void *frame) { return ((uintptr_t)frame & 15) != 0; }

int cuInit(unsigned flags)
{
    return misaligned(__builtin_frame_address(0)) ? 1 : (int)flags;
}

int cuLaunchKernel(uintptr_t a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                   unsigned g, unsigned h, uintptr_t i, uintptr_t j, uintptr_t k)
{
    if (misaligned(__builtin_frame_address(0)))
        return 1;
    return (int)(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k);
}

int cuProfilerStart(double a, double b, double c, double d, double e, double f, double g, double h,
                    double i, uint64_t j)
{
    if (misaligned(__builtin_frame_address(0)))
        return 1;
    return (int)(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i) + 10 * (int)j;
}
