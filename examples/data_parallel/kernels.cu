// What is no product of the example data_parallel's network: relu and its slope, the loss, the update.
//
// kernels.ptx is made from this file; tests/build/example_kernels.rs says how, and that it is current.
// math.rs has the same for the host device.
typedef unsigned long long u64;

__device__ u64 number() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

extern "C" __global__ void relu(float *data, u64 count) {
    u64 i = number();
    if (i < count) data[i] = fmaxf(data[i], 0.0f);
}

// The gradient of what relu was given, from that of what it gave.
extern "C" __global__ void slope(float *gradient, const float *value, u64 count) {
    u64 i = number();
    if (i < count && value[i] <= 0.0f) gradient[i] = 0.0f;
}

// The gradient of half the mean of squares, which it adds to the loss; `share` is one over the elements.
extern "C" __global__ void error(float *found, const float *wanted, float *loss, float share, u64 count) {
    u64 i = number();
    float by = i < count ? found[i] - wanted[i] : 0.0f;
    if (i < count) found[i] = by * share;
    float sum = by * by * share * 0.5f;
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(loss, sum);
}

// Leaves the step out where a gradient of any rank was not finite.
extern "C" __global__ void update(float *weights, const float *gradient, const float *largest, float rate, u64 count) {
    u64 i = number();
    if (i < count && isfinite(*largest)) weights[i] -= rate * gradient[i];
}
