// What a file of kernels includes. A kernel says what happens to element `i`:
//
//     KERNEL void saxpy(u64 i, float a, const float *x, float *y) { y[i] = a * x[i] + y[i]; }
//
// The first parameter is the element; the others are numbers, pointers to as many elements as there are, and
// buffers of any length that are read anywhere:
//
//     KERNEL void row_sums(u64 i, u64 columns, Whole<float> x, float *y) {
//         float sum = 0;
//         for (u64 j = 0; j < columns; j++) sum += x[i * columns + j];
//         y[i] = sum;
//     }
//
// A kernel may touch element `i` of what it has a pointer to and no other, and of a Whole any: the functions
// made of it are safe on the strength of that.
// The same text is compiled by nvcc for the GPU and by the C++ compiler for the host device, without fused
// multiply-add, so that both give the same bits. What only one of them can compile stands under
// `#ifdef __CUDACC__`.
#pragma once

#include <stdint.h>
#include <string.h>

typedef unsigned long long u64;

#ifdef __CUDACC__
#define WP_BOTH __host__ __device__
#define KERNEL static inline __host__ __device__
#else
#define WP_BOTH
#define KERNEL static inline
#endif

// A buffer that is read anywhere. Beyond its end there are zeros, so that no kernel reads what is another's.
template <typename T>
struct Whole {
    const T *at;
    u64 count;

    WP_BOTH T operator[](u64 j) const { return j < count ? at[j] : T(); }
};

// The bits of a float, and the float of bits.
WP_BOTH static inline uint32_t wp_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}
WP_BOTH static inline float wp_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// IEEE 754 half precision: computed with as float, rounded to the nearest, ties to even.
struct f16 {
    uint16_t bits;

    f16() = default;
    WP_BOTH f16(float value) {
        const uint32_t whole = wp_bits(value), sign = whole >> 16 & 0x8000;
        const uint32_t magnitude = whole & 0x7fffffff;
        if (magnitude > 0x7f800000) {
            bits = (uint16_t)(sign | 0x7e00);
        } else if (magnitude >= 0x477ff000) {
            bits = (uint16_t)(sign | 0x7c00); // rounds to 2^16 or more
        } else if (magnitude < 0x38800000) {
            // Below 2^-14 the last bit is 2^-24, as it is in the sum.
            const float sum = wp_float(magnitude) + 0.5f;
            bits = (uint16_t)(sign | (wp_bits(sum) - wp_bits(0.5f)));
        } else {
            const uint32_t odd = magnitude >> 13 & 1;
            bits = (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
        }
    }
    WP_BOTH operator float() const {
        const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
        if (rest >= 0x7c00) return wp_float(sign | 0x7f800000 | rest << 13);
        // 2^-24 is the unit of what is below 2^-14.
        if (rest < 0x400) return wp_float(sign | wp_bits((float)rest * 5.9604644775390625e-8f));
        return wp_float(sign | ((rest << 13) + 0x38000000));
    }
};

// The upper half of a float, rounded to the nearest, ties to even.
struct bf16 {
    uint16_t bits;

    bf16() = default;
    WP_BOTH bf16(float value) {
        const uint32_t whole = wp_bits(value);
        const bool is_nan = (whole & 0x7fffffff) > 0x7f800000;
        bits = (uint16_t)(is_nan ? whole >> 16 | 0x40 : (whole + 0x7fff + (whole >> 16 & 1)) >> 16);
    }
    WP_BOTH operator float() const { return wp_float((uint32_t)bits << 16); }
};
