// Products with weights as they are stored: any encoding, activations as they are.
#include "weight.cuh"

// Rows that one warp multiplies at once.
#define FEW 8

// y[t, n] = x[t] · w[n] for at most FEW tokens; a warp for each output.
// With `experts`, each row of `y` has a matrix of its own, `n_out` rows each: row `t` of `y` is made of
// row `t / per` of `x`.
template <bool EXPERTS>
__device__ __forceinline__ void few(const Raw& w, const float* x, const float* bias, float* y, uint32_t n_tokens,
                                           uint32_t n_out, const int* experts, uint32_t per) {
    wait_before();
    uint32_t n = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (n >= n_out) return;
    uint32_t first = blockIdx.y * (EXPERTS ? 1 : FEW);
    uint32_t count = EXPERTS ? 1 : min(n_tokens - first, (uint32_t)FEW);
    size_t row = EXPERTS ? (size_t)experts[first] * n_out + n : n;
    const float* from = x + (size_t)(EXPERTS ? first / per : first) * w.cols;
    float sums[EXPERTS ? 1 : FEW] = {};
    for (uint32_t k = lane; k < w.cols; k += 32) {
        float weight = raw_number(w, row, k);
#pragma unroll
        for (int t = 0; t < (EXPERTS ? 1 : FEW); t++)
            if (t < count) sums[t] += weight * from[(size_t)t * w.cols + k];
    }
#pragma unroll
    for (int t = 0; t < (EXPERTS ? 1 : FEW); t++) {
        if (t >= count) break;
        float sum = warp_sum(sums[t]);
        if (lane == 0) y[(size_t)(first + t) * n_out + n] = sum + (bias ? bias[n] : 0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(256) linear_few(Raw w, const float* x, const float* bias, float* y,
                                                             uint32_t n_tokens, uint32_t n_out) {
    few<false>(w, x, bias, y, n_tokens, n_out, nullptr, 1);
}

extern "C" __global__ void __launch_bounds__(256) linear_experts(Raw w, const float* x, const int* experts, float* y,
                                                                 uint32_t n_tokens, uint32_t n_out, uint32_t per) {
    few<true>(w, x, nullptr, y, n_tokens, n_out, experts, per);
}

// Tiles of 64 tokens × 64 outputs, 16 columns at a time.
extern "C" __global__ void __launch_bounds__(256) linear_many(Raw w, const float* x, const float* bias, float* y,
                                                              uint32_t n_tokens, uint32_t n_out) {
    __shared__ float xs[16][65], ws[16][65];
    wait_before();
    uint32_t n0 = blockIdx.x * 64, t0 = blockIdx.y * 64;
    uint32_t tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    float sums[4][4] = {};
    for (uint32_t k0 = 0; k0 < w.cols; k0 += 16) {
        for (uint32_t i = threadIdx.x; i < 64 * 16; i += 256) {
            uint32_t r = i >> 4, k = i & 15;
            bool in = k0 + k < w.cols;
            xs[k][r] = in && t0 + r < n_tokens ? x[(size_t)(t0 + r) * w.cols + k0 + k] : 0.0f;
            ws[k][r] = in && n0 + r < n_out ? raw_number(w, n0 + r, k0 + k) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
            float a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; i++) a[i] = xs[k][ty + 16 * i], b[i] = ws[k][tx + 16 * i];
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t t = t0 + ty + 16 * i, n = n0 + tx + 16 * j;
            if (t < n_tokens && n < n_out) y[(size_t)t * n_out + n] = sums[i][j] + (bias ? bias[n] : 0.0f);
        }
}

// y[t] = Σ_j weights[t, j] · x[t·k + j], the sums of a token's experts.
extern "C" __global__ void experts_sum(const float* x, const float* weights, float* y, size_t n, uint32_t channels,
                                       uint32_t top_k) {
    wait_before();
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        size_t t = i / channels;
        float sum = 0.0f;
        for (uint32_t j = 0; j < top_k; j++) sum += weights[t * top_k + j] * x[(t * top_k + j) * channels + i % channels];
        y[i] = sum;
    }
}

// The `top` largest of a row's `n` scores, largest first, lowest index first among equals. One block
// for each row; `taken` has a bit for each score.
inline __device__ void select_largest(const float* scores, uint32_t n, uint32_t top, int* chosen, uint32_t* taken) {
    __shared__ u64 best[33];
    for (uint32_t i = threadIdx.x; i < (n + 31) / 32; i += blockDim.x) taken[i] = 0;
    __syncthreads();
    for (uint32_t j = 0; j < top; j++) {
        u64 mine = 0;
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            if (taken[i >> 5] >> (i & 31) & 1) continue;
            uint32_t bits = __float_as_uint(scores[i]);
            bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
            u64 key = (u64)bits << 32 | ~i;
            mine = key > mine ? key : mine;
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
            u64 other = __shfl_xor_sync(~0u, mine, d);
            mine = other > mine ? other : mine;
        }
        if ((threadIdx.x & 31) == 0) best[threadIdx.x >> 5] = mine;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (uint32_t i = 1; i < blockDim.x / 32; i++) mine = best[i] > mine ? best[i] : mine;
            uint32_t index = ~(uint32_t)mine;
            chosen[j] = (int)index;
            taken[index >> 5] |= 1u << (index & 31);
        }
        __syncthreads();
    }
}

// From scores `[T, E]` to chosen experts and their weights. One block for each token.
extern "C" __global__ void __launch_bounds__(128) router(const float* scores, const float* expert_scale, int* experts,
                                                         float* weights, uint32_t n, uint32_t top_k) {
    extern __shared__ uint32_t taken[];
    __shared__ float shared[33];
    wait_before();
    scores += (size_t)blockIdx.x * n;
    experts += (size_t)blockIdx.x * top_k;
    weights += (size_t)blockIdx.x * top_k;
    select_largest(scores, n, top_k, experts, taken);
    // A softmax over all that is then divided by the sum of the chosen is one over the chosen.
    float most = scores[experts[0]], sum = 0.0f;
    for (uint32_t j = threadIdx.x; j < top_k; j += blockDim.x) sum += expf(scores[experts[j]] - most);
    sum = block_sum(sum, shared);
    for (uint32_t j = threadIdx.x; j < top_k; j += blockDim.x)
        weights[j] = expf(scores[experts[j]] - most) / sum * expert_scale[experts[j]];
}

// The best centroids of each row of scores `[R, n]`.
extern "C" __global__ void __launch_bounds__(256) centroid_choose(const float* scores, int* chosen, uint32_t n,
                                                                  uint32_t top) {
    extern __shared__ uint32_t taken[];
    wait_before();
    select_largest(scores + (size_t)blockIdx.x * n, n, top, chosen + (size_t)blockIdx.x * top, taken);
}

// The logits of the tokens under the chosen centroids, `[R, top·per]`; a warp for each.
extern "C" __global__ void __launch_bounds__(256) centroid_logits(Raw w, const float* x, const int* chosen,
                                                                  const uint32_t* ordering, float* found, uint32_t top,
                                                                  uint32_t per) {
    wait_before();
    uint32_t i = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (i >= top * per) return;
    x += (size_t)blockIdx.y * w.cols;
    uint32_t centroid = (uint32_t)chosen[(size_t)blockIdx.y * top + i / per];
    size_t token = ordering[(size_t)centroid * per + i % per];
    float sum = 0.0f;
    for (uint32_t k = lane; k < w.cols; k += 32) sum += raw_number(w, token, k) * x[k];
    sum = warp_sum(sum);
    if (lane == 0) found[(size_t)blockIdx.y * top * per + i] = sum;
}

// Writes a row of logits: what was found, and everywhere else the least of that, minus 1.
extern "C" __global__ void __launch_bounds__(1024) centroid_fill(const float* found, const int* chosen,
                                                                 const uint32_t* ordering, float* y, uint32_t vocab,
                                                                 uint32_t top, uint32_t per) {
    __shared__ float shared[33];
    wait_before();
    uint32_t n = top * per;
    found += (size_t)blockIdx.x * n;
    chosen += (size_t)blockIdx.x * top;
    y += (size_t)blockIdx.x * vocab;
    float most = -INFINITY;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, -found[i]);
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = most;
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / 32; i++) most = fmaxf(most, shared[i]);
    for (uint32_t i = threadIdx.x; i < vocab; i += blockDim.x) y[i] = -most - 1.0f;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        y[ordering[(size_t)chosen[i / per] * per + i % per]] = found[i];
}
