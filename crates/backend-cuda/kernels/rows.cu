// What stands between products, over whole rows: residual sums with the norms around them, gates; the
// rows become bytes for the next product as they are made.
#include "packed.cuh"

// `s = (x + norm(a)) · scale`, `y = norm(s)`; each norm, the scale and `y` may be left out.
struct Residual {
    const float* x;
    const float* a;
    const float* pre;    // the weight of the first norm; with `has_pre` and none, the norm has no weight
    const float* scale;  // one number, or one for each channel
    const float* post;
    float* sum;  // none if nothing else reads it
    float* y;
    float pre_eps, pre_offset, post_eps, post_offset;
    uint32_t channels, scale_width, has_pre, has_post;
};

#define EACH_THREAD 8  // numbers of a row that a thread has in registers

// A block for each row of at most 8192 channels. `channels` numbers of shared memory.
extern "C" __global__ void __launch_bounds__(1024) residual(Residual p, Bytes to) {
    extern __shared__ float row[];
    __shared__ float shared[33];
    start_next();
    uint32_t n = p.channels;
    float pre[EACH_THREAD], post[EACH_THREAD], v[EACH_THREAD], x[EACH_THREAD];
    // Weights are nobody's work.
#pragma unroll
    for (int j = 0; j < EACH_THREAD; j++) {
        uint32_t i = threadIdx.x + j * blockDim.x;
        bool in = i < n;
        pre[j] = in && p.pre ? p.pre_offset + p.pre[i] : 1.0f;
        post[j] = in && p.post ? p.post_offset + p.post[i] : 1.0f;
    }
    wait_before();
    const float *from = p.x + (size_t)blockIdx.x * n, *a = p.a + (size_t)blockIdx.x * n;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH_THREAD; j++) {
        uint32_t i = threadIdx.x + j * blockDim.x;
        v[j] = i < n ? a[i] : 0.0f;
        x[j] = i < n ? from[i] : 0.0f;
        sum += v[j] * v[j];
    }
    float root = 1.0f;
    if (p.has_pre) root = sqrtf(block_sum(sum, shared) / (float)n + p.pre_eps);
    sum = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH_THREAD; j++) {
        uint32_t i = threadIdx.x + j * blockDim.x;
        v[j] = x[j] + (p.has_pre ? v[j] / root * pre[j] : v[j]);
        if (p.scale && i < n) v[j] *= p.scale[p.scale_width == 1 ? 0 : i];
        if (p.sum && i < n) p.sum[(size_t)blockIdx.x * n + i] = v[j];
        sum += v[j] * v[j];
    }
    if (!p.has_post) return;
    root = sqrtf(block_sum(sum, shared) / (float)n + p.post_eps);
#pragma unroll
    for (int j = 0; j < EACH_THREAD; j++) {
        uint32_t i = threadIdx.x + j * blockDim.x;
        if (i >= n) break;
        float y = v[j] / root * post[j];
        row[i] = y;
        p.y[(size_t)blockIdx.x * n + i] = y;
    }
    if (!to.planes) return;
    __syncthreads();
    uint32_t lane = threadIdx.x & 31, blocks = (n + 63) / 64;
    for (uint32_t b = threadIdx.x >> 5; b < blocks; b += blockDim.x >> 5) {
        uint32_t k = b * 64 + 2 * lane;
        put_bytes(to, (size_t)blockIdx.x * blocks + b, lane, k < n ? row[k] : 0.0f, k + 1 < n ? row[k + 1] : 0.0f);
    }
}

// `gelu(gate) · up` as numbers and as bytes; a warp for each block of each row.
extern "C" __global__ void __launch_bounds__(128)
    gelu_bytes(const float* gate, const float* up, float* y, Bytes to, uint32_t rows, uint32_t n_cols) {
    wait_before();
    start_next();
    uint32_t n_blocks = (n_cols + 63) / 64, lane = threadIdx.x & 31;
    size_t block = blockIdx.x * (size_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    if (block >= (size_t)rows * n_blocks) return;
    uint32_t k = block % n_blocks * 64 + 2 * lane;
    size_t at = block / n_blocks * n_cols + k;
    float a = 0.0f, b = 0.0f;
    if (k < n_cols) y[at] = a = gelu_tanh(gate[at]) * up[at];
    if (k + 1 < n_cols) y[at + 1] = b = gelu_tanh(gate[at + 1]) * up[at + 1];
    put_bytes(to, block, lane, a, b);
}
