// What a file of kernels includes. A kernel says what happens to element `i`:
//
//     KERNEL void saxpy(u64 i, float a, const float *x, float *y) { y[i] = a * x[i] + y[i]; }
//
// The first parameter is the element; the others are numbers, and pointers to as many elements as there are.
// A kernel may touch element `i` of each and no other: the functions made of it are safe on the strength of
// that.
// The same text is compiled by nvcc for the GPU and by the C++ compiler for the host device, without fused
// multiply-add, so that both give the same bits. What only one of them can compile stands under
// `#ifdef __CUDACC__`.
#pragma once

#include <stdint.h>

typedef unsigned long long u64;

#ifdef __CUDACC__
#define KERNEL static inline __host__ __device__
#else
#define KERNEL static inline
#endif
