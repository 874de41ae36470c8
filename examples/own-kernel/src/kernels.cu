#include "warpool_kernel.h"

// y = a * x + y
KERNEL void saxpy(u64 i, float a, const float *x, float *y) {
    y[i] = a * x[i] + y[i];
}

// Each value by its magnitude: 0, 1 or 2 for small, middle, large.
KERNEL void classify(u64 i, const float *y, float small, float large, uint8_t *classes) {
    const float magnitude = y[i] < 0 ? -y[i] : y[i];
    classes[i] = magnitude < small ? 0 : magnitude < large ? 1 : 2;
}
