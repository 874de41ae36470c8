#include "warpool_kernel.h"

#include <math.h>

// Matrices are rows of a batch. All sums are in f32 and in order, so that what is computed again is the same.

template <typename T>
WP_BOTH static inline float product(u64 row, u64 column, u64 inner, u64 columns, const Whole<T> &x, const Whole<T> &w) {
    float sum = 0;
    for (u64 k = 0; k < inner; k++) sum += (float)x[row * inner + k] * (float)w[k * columns + column];
    return sum;
}

// y = x w + b
template <typename T>
WP_BOTH static inline void linear(u64 i, u64 inner, u64 columns, const Whole<T> &x, const Whole<T> &w, const Whole<T> &b, T *y) {
    y[i] = product(i / columns, i % columns, inner, columns, x, w) + (float)b[i % columns];
}

// r = relu(x w + b), y = x + r
template <typename T>
WP_BOTH static inline void block(u64 i, u64 width, const Whole<T> &x, const Whole<T> &w, const Whole<T> &b, T *r, T *y) {
    const float sum = product(i / width, i % width, width, width, x, w) + (float)b[i % width];
    const T positive = sum > 0 ? sum : 0;
    r[i] = positive;
    y[i] = (float)x[i] + (float)positive;
}

// The gradient of the products' sums: where relu let them through.
template <typename T>
WP_BOTH static inline void through_relu(u64 i, const T *r, const T *dy, T *dz) {
    dz[i] = (float)r[i] > 0 ? (float)dy[i] : 0.0f;
}

// dx = dz w^T, and dy with it if there is one beside.
template <typename T>
WP_BOTH static inline void back(u64 i, u64 width, u64 columns, const Whole<T> &dz, const Whole<T> &w, const Whole<T> &beside, T *dx) {
    const u64 row = i / width, column = i % width;
    float sum = beside[i];
    for (u64 k = 0; k < columns; k++) sum += (float)dz[row * columns + k] * (float)w[column * columns + k];
    dx[i] = sum;
}

// dw += x^T dz
template <typename T>
WP_BOTH static inline void weights(u64 i, u64 rows, u64 width, u64 columns, const Whole<T> &x, const Whole<T> &dz, float *dw) {
    const u64 from = i / columns, to = i % columns;
    float sum = 0;
    for (u64 row = 0; row < rows; row++) sum += (float)x[row * width + from] * (float)dz[row * columns + to];
    dw[i] += sum;
}

// db += the sum of the rows of dz
template <typename T>
WP_BOTH static inline void bias(u64 i, u64 rows, u64 columns, const Whole<T> &dz, float *db) {
    float sum = 0;
    for (u64 row = 0; row < rows; row++) sum += (float)dz[row * columns + i];
    db[i] += sum;
}

// The gradient of the mean cross-entropy of `samples` rows, times the loss scale.
template <typename T>
WP_BOTH static inline void loss_gradient(u64 i, u64 classes, u64 samples, const Whole<T> &y, const Whole<uint32_t> &label,
                          const Whole<float> &scale, T *dy) {
    const u64 row = i / classes;
    float most = y[row * classes], sum = 0;
    for (u64 k = 1; k < classes; k++) most = fmaxf(most, y[row * classes + k]);
    for (u64 k = 0; k < classes; k++) sum += expf((float)y[row * classes + k] - most);
    const float share = expf((float)y[i] - most) / sum;
    dy[i] = (share - (label[row] == i % classes ? 1.0f : 0.0f)) * (scale[0] / (float)samples);
}

// The cross-entropy of each row.
template <typename T>
WP_BOTH static inline void cross_entropy(u64 row, u64 classes, const Whole<T> &y, const uint32_t *label, float *loss) {
    float most = y[row * classes], sum = 0;
    for (u64 k = 1; k < classes; k++) most = fmaxf(most, y[row * classes + k]);
    for (u64 k = 0; k < classes; k++) sum += expf((float)y[row * classes + k] - most);
    loss[row] = logf(sum) + most - (float)y[row * classes + label[row]];
}

// A step of gradient descent with momentum, left out where a gradient was not finite.
KERNEL void descend(u64 i, float rate, float decay, Whole<uint32_t> found, const float *gradient, float *momentum,
                    float *master) {
    if (found[0]) return;
    momentum[i] = decay * momentum[i] + gradient[i];
    master[i] -= rate * momentum[i];
}

KERNEL void clear(u64 i, float *x) { x[i] = 0; }

// What Rust calls, in f32 and in f16.
KERNEL void linear_f32(u64 i, u64 inner, u64 columns, Whole<float> x, Whole<float> w, Whole<float> b, float *y) {
    linear<float>(i, inner, columns, x, w, b, y);
}
KERNEL void block_f32(u64 i, u64 width, Whole<float> x, Whole<float> w, Whole<float> b, float *r, float *y) {
    block<float>(i, width, x, w, b, r, y);
}
KERNEL void through_relu_f32(u64 i, const float *r, const float *dy, float *dz) {
    through_relu<float>(i, r, dy, dz);
}
KERNEL void back_f32(u64 i, u64 width, u64 columns, Whole<float> dz, Whole<float> w, Whole<float> beside, float *dx) {
    back<float>(i, width, columns, dz, w, beside, dx);
}
KERNEL void weights_f32(u64 i, u64 rows, u64 width, u64 columns, Whole<float> x, Whole<float> dz, float *dw) {
    weights<float>(i, rows, width, columns, x, dz, dw);
}
KERNEL void bias_f32(u64 i, u64 rows, u64 columns, Whole<float> dz, float *db) {
    bias<float>(i, rows, columns, dz, db);
}
KERNEL void loss_gradient_f32(u64 i, u64 classes, u64 samples, Whole<float> y, Whole<uint32_t> label, Whole<float> scale, float *dy) {
    loss_gradient<float>(i, classes, samples, y, label, scale, dy);
}
KERNEL void cross_entropy_f32(u64 i, u64 classes, Whole<float> y, const uint32_t *label, float *loss) {
    cross_entropy<float>(i, classes, y, label, loss);
}
KERNEL void linear_f16(u64 i, u64 inner, u64 columns, Whole<f16> x, Whole<f16> w, Whole<f16> b, f16 *y) {
    linear<f16>(i, inner, columns, x, w, b, y);
}
KERNEL void block_f16(u64 i, u64 width, Whole<f16> x, Whole<f16> w, Whole<f16> b, f16 *r, f16 *y) {
    block<f16>(i, width, x, w, b, r, y);
}
KERNEL void through_relu_f16(u64 i, const f16 *r, const f16 *dy, f16 *dz) {
    through_relu<f16>(i, r, dy, dz);
}
KERNEL void back_f16(u64 i, u64 width, u64 columns, Whole<f16> dz, Whole<f16> w, Whole<f16> beside, f16 *dx) {
    back<f16>(i, width, columns, dz, w, beside, dx);
}
KERNEL void weights_f16(u64 i, u64 rows, u64 width, u64 columns, Whole<f16> x, Whole<f16> dz, float *dw) {
    weights<f16>(i, rows, width, columns, x, dz, dw);
}
KERNEL void bias_f16(u64 i, u64 rows, u64 columns, Whole<f16> dz, float *db) {
    bias<f16>(i, rows, columns, dz, db);
}
KERNEL void loss_gradient_f16(u64 i, u64 classes, u64 samples, Whole<f16> y, Whole<uint32_t> label, Whole<float> scale, f16 *dy) {
    loss_gradient<f16>(i, classes, samples, y, label, scale, dy);
}
KERNEL void cross_entropy_f16(u64 i, u64 classes, Whole<f16> y, const uint32_t *label, float *loss) {
    cross_entropy<f16>(i, classes, y, label, loss);
}
