/* What app.rs does, in C: for trampolines of an architecture that no Rust is installed for. */
#include <stdint.h>
#include <stdio.h>

int cuInit(unsigned);
int cuLaunchKernel(uintptr_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   uintptr_t, uintptr_t, uintptr_t);
int cuProfilerStart(double, double, double, double, double, double, double, double, double,
                    uint64_t);
int cuMemAlloc_v2(uint64_t *, size_t);

int main(void)
{
    printf("init: %d\n", cuInit(0));
    for (int call = 0; call < 2; call++)
        printf("launch: %d, floats: %d, missing: %d\n",
               cuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
               cuProfilerStart(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), cuMemAlloc_v2(NULL, 0));
    return 0;
}
