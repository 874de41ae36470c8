// The kernels of the example mixed_precision: a network of one hidden layer, in f16 and in f32.
//
// kernels.ptx is made from this file; tests/build/example_kernels.rs says how, and that it is current.
// host.rs has the same functions for the host device.
#include <cuda_fp16.h>

typedef unsigned long long u64;

// As in calls.rs. A weight row ends in the bias, and a sample and a hidden row in a constant 1.
struct Pass {
    u64 w1;      // [hidden][inputs], elements
    u64 w2;      // [hidden + 1], elements
    u64 x;       // [samples][inputs], elements
    u64 target;  // [samples], f32
    u64 h;       // [samples][hidden + 1], elements
    u64 dy;      // [samples], elements
    u64 g1;      // the gradient of w1
    u64 g2;      // the gradient of w2
    u64 loss;    // [samples], f32
    u64 scale;   // the loss scale, f32
    u64 samples, inputs, hidden;
    float share;  // what one sample counts in the mean over a step
};

struct Update {
    u64 gradient;  // elements
    u64 sum;       // f32
    u64 master;    // f32
    u64 momentum;  // f32
    u64 found;     // u32: not 0 if the step is to be left out
    u64 count;
    float rate, decay, keep;  // keep: 0 for the first gradient of a step, else 1
};

__device__ float get(u64 at, u64 i, half) { return __half2float(((const half *)at)[i]); }
__device__ float get(u64 at, u64 i, float) { return ((const float *)at)[i]; }
__device__ void put(u64 at, u64 i, float x, half) { ((half *)at)[i] = __float2half_rn(x); }
__device__ void put(u64 at, u64 i, float x, float) { ((float *)at)[i] = x; }

__device__ u64 number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// One thread for each element of h.
template <class T>
__device__ void hidden(const Pass &p) {
    const u64 row = p.hidden + 1, s = number() / row, j = number() % row;
    if (s >= p.samples) return;
    float sum = 0;
    if (j < p.hidden)
        for (u64 i = 0; i < p.inputs; i++) sum += get(p.w1, j * p.inputs + i, T()) * get(p.x, s * p.inputs + i, T());
    put(p.h, number(), j < p.hidden ? tanhf(sum) : 1.0f, T());
}

// One thread for each sample.
template <class T>
__device__ void output(const Pass &p) {
    const u64 s = number(), row = p.hidden + 1;
    if (s >= p.samples) return;
    float y = 0;
    for (u64 j = 0; j < row; j++) y += get(p.w2, j, T()) * get(p.h, s * row + j, T());
    const float error = y - ((const float *)p.target)[s];
    ((float *)p.loss)[s] = error * error;
    put(p.dy, s, 2 * error * p.share * *(const float *)p.scale, T());
}

// One thread for each element of w2.
template <class T>
__device__ void gradient_w2(const Pass &p) {
    const u64 j = number(), row = p.hidden + 1;
    if (j >= row) return;
    float sum = 0;
    for (u64 s = 0; s < p.samples; s++) sum += get(p.dy, s, T()) * get(p.h, s * row + j, T());
    put(p.g2, j, sum, T());
}

// One thread for each element of w1.
template <class T>
__device__ void gradient_w1(const Pass &p) {
    const u64 j = number() / p.inputs, i = number() % p.inputs;
    if (j >= p.hidden) return;
    float sum = 0;
    for (u64 s = 0; s < p.samples; s++) {
        const float h = get(p.h, s * (p.hidden + 1) + j, T());
        sum += get(p.dy, s, T()) * (1 - h * h) * get(p.x, s * p.inputs + i, T());
    }
    put(p.g1, number(), sum * get(p.w2, j, T()), T());
}

// One thread for each element.
template <class T>
__device__ void accumulate(const Update &u) {
    const u64 i = number();
    if (i >= u.count) return;
    float *sum = (float *)u.sum + i;
    const float before = u.keep != 0 ? *sum : 0;
    *sum = before + get(u.gradient, i, T());
}

#define KERNELS(T, NAME)                                                          \
    extern "C" __global__ void hidden_##NAME(Pass p) { hidden<T>(p); }            \
    extern "C" __global__ void output_##NAME(Pass p) { output<T>(p); }            \
    extern "C" __global__ void gradient_w1_##NAME(Pass p) { gradient_w1<T>(p); }  \
    extern "C" __global__ void gradient_w2_##NAME(Pass p) { gradient_w2<T>(p); }  \
    extern "C" __global__ void accumulate_##NAME(Update u) { accumulate<T>(u); }

KERNELS(half, f16)
KERNELS(float, f32)

// Momentum, and a step of the masters, unless some gradient was not finite.
extern "C" __global__ void step(Update u) {
    const u64 i = number();
    if (i >= u.count || *(const unsigned *)u.found != 0) return;
    float *momentum = (float *)u.momentum + i, *master = (float *)u.master + i;
    *momentum = u.decay * *momentum + ((const float *)u.sum)[i];
    *master -= u.rate * *momentum;
}
