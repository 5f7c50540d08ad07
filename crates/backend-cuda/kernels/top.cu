// What is made of the rows of an output on the device: the largest numbers, the logarithm of the sum
// of all exponentials, a drawn token.
#include "common.cuh"

#define STRETCH 2048  // numbers that one block looks at
#define THREADS 256

// A number as a key that sorts: not finite first, then larger, then a lower index. −0 equals 0.
__device__ __forceinline__ u64 key_of(float x, uint32_t index) {
    uint32_t bits = __float_as_uint(x + 0.0f);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    if (!isfinite(x)) bits = 0xffffffffu;
    return (u64)bits << 32 | (uint32_t)~index;
}

// Sorts `STRETCH` keys, largest first.
__device__ __forceinline__ void sort_keys(u64* keys) {
    for (int size = 2; size <= STRETCH; size <<= 1) {
        for (int stride = size >> 1; stride > 0; stride >>= 1) {
            for (int i = threadIdx.x; i < STRETCH / 2; i += THREADS) {
                int a = 2 * i - (i & (stride - 1)), b = a + stride;
                bool falls = (a & size) == 0;
                u64 x = keys[a], y = keys[b];
                if ((x < y) == falls) keys[a] = y, keys[b] = x;
            }
            __syncthreads();
        }
    }
}

// The `k` largest keys of each stretch of a row of numbers: `[rows, stretches, k]`. What the mask
// leaves out, and what is after the end, is 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    top_numbers(const float* x, const uint32_t* masks, u64* best, uint32_t n, uint32_t k) {
    __shared__ u64 keys[STRETCH];
    wait_before();
    const float* row = x + (size_t)blockIdx.y * n;
    const uint32_t* mask = masks ? masks + (size_t)blockIdx.y * ((n + 31) / 32) : nullptr;
    for (int i = threadIdx.x; i < STRETCH; i += THREADS) {
        uint32_t at = blockIdx.x * STRETCH + i;
        bool counts = at < n && (!mask || (mask[at >> 5] >> (at & 31) & 1));
        keys[i] = counts ? key_of(row[at], at) : 0;
    }
    __syncthreads();
    sort_keys(keys);
    u64* to = best + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * k;
    for (int i = threadIdx.x; i < k; i += THREADS) to[i] = keys[i];
}

// The `k` largest of each stretch of keys.
extern "C" __global__ void __launch_bounds__(THREADS) top_keys(const u64* x, u64* best, uint32_t n, uint32_t k) {
    __shared__ u64 keys[STRETCH];
    wait_before();
    const u64* row = x + (size_t)blockIdx.y * n;
    for (int i = threadIdx.x; i < STRETCH; i += THREADS) {
        uint32_t at = blockIdx.x * STRETCH + i;
        keys[i] = at < n ? row[at] : 0;
    }
    __syncthreads();
    sort_keys(keys);
    u64* to = best + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * k;
    for (int i = threadIdx.x; i < k; i += THREADS) to[i] = keys[i];
}

__device__ __forceinline__ float value_of(u64 key) {
    if (key == 0) return -INFINITY;
    uint32_t bits = (uint32_t)(key >> 32);
    if (bits == 0xffffffffu) return __uint_as_float(0x7fc00000u);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

// Keys as candidates: value and index.
extern "C" __global__ void candidates(const u64* best, uint2* out, size_t n) {
    wait_before();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) out[i] = make_uint2(__float_as_uint(value_of(best[i])), best[i] == 0 ? 0 : ~(uint32_t)best[i]);
}

// One block for each row.
extern "C" __global__ void __launch_bounds__(1024) logsumexp(const float* x, const uint32_t* masks, float* y, uint32_t n) {
    __shared__ float mosts[32];
    __shared__ double sums[32];
    wait_before();
    const float* row = x + (size_t)blockIdx.x * n;
    const uint32_t* mask = masks ? masks + (size_t)blockIdx.x * ((n + 31) / 32) : nullptr;
    float most = -INFINITY;
    for (uint32_t i = threadIdx.x; i < n; i += 1024)
        if (!mask || (mask[i >> 5] >> (i & 31) & 1)) most = fmaxf(most, row[i]);
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0) mosts[threadIdx.x >> 5] = most;
    __syncthreads();
    for (int w = 0; w < 32; w++) most = fmaxf(most, mosts[w]);
    double sum = 0.0;
    for (uint32_t i = threadIdx.x; i < n; i += 1024)
        if (!mask || (mask[i >> 5] >> (i & 31) & 1)) sum += (double)expf(row[i] - most);
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < 32; w++) sum += sums[w];
    y[blockIdx.x] = most == -INFINITY ? most : (float)((double)most + log(sum));
}

// As `engine/draw.rs` has it.
struct Rule {
    float temperature;
    uint32_t top_k;
    float top_p, min_p;
    uint32_t seed_low, seed_high, position, unused;
};

inline __device__ uint32_t philox_word(const Rule& rule, uint32_t id) {
    uint32_t c0 = id / 4, c1 = rule.position, c2 = 0, c3 = 0, k0 = rule.seed_low, k1 = rule.seed_high;
    for (int i = 0; i < 10; i++) {
        u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    uint32_t words[4] = {c0, c1, c2, c3};
    return words[id & 3];
}

// One block of 128 threads for each row, one thread for each candidate; `k` is at most 128.
// The rule is that of the sampler on the host, in f64.
extern "C" __global__ void __launch_bounds__(128) draw(const uint2* candidates, const Rule* rules, int* drawn, uint32_t k) {
    __shared__ double weights[128];
    __shared__ double scores[128];
    __shared__ uint32_t n_kept;
    wait_before();
    Rule rule = rules[blockIdx.x];
    const uint2* own = candidates + (size_t)blockIdx.x * k;
    uint32_t i = threadIdx.x;
    float value = i < k ? __uint_as_float(own[i].x) : -INFINITY;
    uint32_t id = i < k ? own[i].y : 0;
    float best = __uint_as_float(own[0].x);
    // Candidates come best first, so those that are possible come first, too.
    bool is_kept = i < k && value > -INFINITY && (rule.top_k == 0 || i < rule.top_k);
    if (rule.temperature == 0.0f || rule.top_k == 1) {
        // Among candidates that are not finite, the first that compares wins.
        uint32_t first = __syncthreads_or(is_kept) ? 0 : 1;
        if (i == 0) {
            int token = 0;
            for (uint32_t j = 0; j < k && first == 0; j++)
                if (__uint_as_float(own[j].x) > -INFINITY) {
                    token = (int)own[j].y;
                    break;
                }
            drawn[blockIdx.x] = token;
        }
        return;
    }
    double inverse = 1.0 / (double)rule.temperature;
    double logit = (double)(value - best) * inverse;
    weights[i] = is_kept ? exp(logit) : 0.0;
    __syncthreads();
    if (i == 0) {
        n_kept = 128;
        if (rule.top_p < 1.0f) {
            double all = 0.0, mass = 0.0;
            for (uint32_t j = 0; j < k; j++) all += weights[j];
            double wanted = (double)rule.top_p * all;
            for (uint32_t j = 0; j < k; j++) {
                mass += weights[j];
                if (mass >= wanted) {
                    n_kept = j + 1;
                    break;
                }
            }
        }
    }
    __syncthreads();
    is_kept = is_kept && i < n_kept && (rule.min_p <= 0.0f || logit >= log((double)rule.min_p));
    double v = ((double)philox_word(rule, id) + 0.5) / 4294967296.0;
    scores[i] = is_kept ? logit - log(-log1p(-v)) : -INFINITY;
    __syncthreads();
    if (i != 0) return;
    int token = 0;
    double most = -INFINITY;
    for (uint32_t j = 0; j < k; j++) {
        int other = (int)own[j].y;
        if (scores[j] > most || (scores[j] == most && most > -INFINITY && other < token)) most = scores[j], token = other;
    }
    drawn[blockIdx.x] = token;
}
