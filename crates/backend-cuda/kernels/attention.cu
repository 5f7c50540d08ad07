// Attention, any head size up to 512, and what writes caches.
#include "cache.cuh"
#include "packed.cuh"

#define MOST_CHANNELS 16  // of a lane
#define WARPS 4

// A query, its running maximum, sum and weighted values, shared among the lanes of a warp.
struct Running {
    float q[MOST_CHANNELS], sum[MOST_CHANNELS];
    float most, total;
};

__device__ __forceinline__ void begin(Running& r, const float* q, uint32_t head_dim, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        uint32_t d = lane + 32 * i;
        r.q[i] = d < head_dim ? q[d] : 0.0f;
        r.sum[i] = 0.0f;
    }
    r.most = -INFINITY;
    r.total = 0.0f;
}

// Takes in one key with its score, and its value.
template <class Value>
__device__ __forceinline__ void take(Running& r, float score, uint32_t head_dim, uint32_t lane, Value value) {
    float most = fmaxf(r.most, score);
    float old = expf(r.most - most), own = expf(score - most);
    r.total = r.total * old + own;
    r.most = most;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        uint32_t d = lane + 32 * i;
        if (32 * i >= head_dim) break;
        r.sum[i] = r.sum[i] * old + own * (d < head_dim ? value(d) : 0.0f);
    }
}

template <class Key>
__device__ __forceinline__ float dot(const Running& r, uint32_t head_dim, uint32_t lane, Key key) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        uint32_t d = lane + 32 * i;
        if (32 * i >= head_dim) break;
        if (d < head_dim) sum += r.q[i] * key(d);
    }
    return warp_sum(sum);
}

// Joins the warps of a block; `most` and `total` hold for all of it afterwards, and the first warp has
// the sums.
__device__ __forceinline__ void join(Running& r, uint32_t head_dim, uint32_t lane, uint32_t warp, float* shared) {
    float* mosts = shared;
    float* totals = shared + WARPS;
    float* sums = shared + 2 * WARPS;
    if (lane == 0) mosts[warp] = r.most, totals[warp] = r.total;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        uint32_t d = lane + 32 * i;
        if (d < head_dim) sums[warp * 512 + d] = r.sum[i];
    }
    __syncthreads();
    float most = -INFINITY;
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, mosts[w]);
    float total = 0.0f;
    for (int w = 0; w < WARPS; w++)
        if (totals[w] > 0.0f) total += totals[w] * expf(mosts[w] - most);
    r.most = most;
    r.total = total;
    if (warp != 0) return;
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++) {
        uint32_t d = lane + 32 * i;
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++)
            if (d < head_dim && totals[w] > 0.0f) sum += sums[w * 512 + d] * expf(mosts[w] - most);
        r.sum[i] = sum;
    }
}

// A block for each token, query head and part of its keys. With one part it writes what is attended
// to; with several `parts`, `[tokens, heads, parts, head_dim + 2]`: sums, maximum, total.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attention(const float* q, Cache cache, const Place* places, const int* pages, float* y, float* parts,
              uint32_t n_heads, float scale, uint32_t window, uint32_t is_bidirectional, uint32_t own_key) {
    __shared__ float shared[2 * WARPS + WARPS * 512];
    wait_before();
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t t = blockIdx.x, h = blockIdx.y, head_dim = cache.head_dim;
    Place place = places[t];
    Seen seen = seen_keys(place, window, is_bidirectional, own_key);
    int n = max(0, seen.end - seen.first), share = (n + (int)gridDim.z - 1) / (int)gridDim.z;
    int first = seen.first + share * (int)blockIdx.z, end = min(first + share, seen.end);
    uint32_t kv_head = h / (n_heads / cache.n_heads);
    size_t at = (size_t)t * n_heads + h;
    Running r;
    begin(r, q + at * head_dim, head_dim, lane);
    for (int k = first + (int)warp; k < end; k += WARPS) {
        size_t row = cache_row(cache, pages[place.table + k / PAGE], kv_head, k);
        float score = scale * dot(r, head_dim, lane, [&](uint32_t d) {
            return cache_load(cache.keys, cache.key_scales, cache.kind, row, head_dim, d);
        });
        take(r, score, head_dim, lane, [&](uint32_t d) {
            return cache_load(cache.values, cache.value_scales, cache.kind, row, head_dim, d);
        });
    }
    join(r, head_dim, lane, warp, shared);
    if (warp != 0) return;
    if (gridDim.z > 1) {
        float* part = parts + (at * gridDim.z + blockIdx.z) * (head_dim + 2);
        for (int i = 0; i < MOST_CHANNELS && lane + 32 * i < head_dim; i++) part[lane + 32 * i] = r.sum[i];
        if (lane == 0) part[head_dim] = r.most, part[head_dim + 1] = r.total;
        return;
    }
    // A query that sees no key gives 0.
    float by = r.total > 0.0f ? 1.0f / r.total : 0.0f;
    for (int i = 0; i < MOST_CHANNELS && lane + 32 * i < head_dim; i++) y[at * head_dim + lane + 32 * i] = r.sum[i] * by;
}

// The same over `bf16`, with CH neighbouring channels in each lane and four keys at a time.
template <int CH>
__device__ __forceinline__ void few_keys(const float* q, const Cache& cache, const Place* places, const int* pages,
                                                float* y, float* parts, uint32_t n_heads, float scale, uint32_t window,
                                                uint32_t is_bidirectional, uint32_t own_key) {
    constexpr int KEYS = 4, WORDS = CH / 2;
    __shared__ float mosts[WARPS], totals[WARPS], sums[WARPS][32 * CH];
    wait_before();
    start_next();
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, t = blockIdx.x, h = blockIdx.y;
    constexpr uint32_t head_dim = 32 * CH;
    Place place = places[t];
    Seen seen = seen_keys(place, window, is_bidirectional, own_key);
    int n = max(0, seen.end - seen.first), share = (n + (int)gridDim.z - 1) / (int)gridDim.z;
    int first = seen.first + share * (int)blockIdx.z, end = min(first + share, seen.end);
    uint32_t kv_head = h / (n_heads / cache.n_heads);
    size_t at = (size_t)t * n_heads + h;
    float own[CH], acc[CH] = {}, most = -INFINITY, total = 0.0f;
#pragma unroll
    for (int i = 0; i < CH; i++) own[i] = q[at * head_dim + lane * CH + i] * scale;
    for (int base = first + (int)warp * KEYS; base < end; base += WARPS * KEYS) {
        uint32_t k[KEYS][WORDS], v[KEYS][WORDS];
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            int key = min(base + j, end - 1);
            size_t row = cache_row(cache, pages[place.table + key / PAGE], kv_head, key) * head_dim + lane * CH;
            const uint2* ks = (const uint2*)((const __nv_bfloat16*)cache.keys + row);
            const uint2* vs = (const uint2*)((const __nv_bfloat16*)cache.values + row);
#pragma unroll
            for (int i = 0; i < WORDS / 2; i++) {
                uint2 a = ks[i], b = vs[i];
                k[j][2 * i] = a.x, k[j][2 * i + 1] = a.y, v[j][2 * i] = b.x, v[j][2 * i + 1] = b.y;
            }
        }
        float s[KEYS];
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            s[j] = 0.0f;
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                s[j] += own[2 * i] * __uint_as_float(k[j][i] << 16);
                s[j] += own[2 * i + 1] * __uint_as_float(k[j][i] & 0xffff0000u);
            }
        }
#pragma unroll
        for (int d = 16; d > 0; d >>= 1)
#pragma unroll
            for (int j = 0; j < KEYS; j++) s[j] += __shfl_xor_sync(~0u, s[j], d);
        float now = most;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            if (base + j >= end) s[j] = -INFINITY;
            now = fmaxf(now, s[j]);
        }
        float old = expf(most - now);
        most = now;
        total *= old;
#pragma unroll
        for (int i = 0; i < CH; i++) acc[i] *= old;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            float p = expf(s[j] - now);
            total += p;
#pragma unroll
            for (int i = 0; i < WORDS; i++) {
                acc[2 * i] += p * __uint_as_float(v[j][i] << 16);
                acc[2 * i + 1] += p * __uint_as_float(v[j][i] & 0xffff0000u);
            }
        }
    }
    if (lane == 0) mosts[warp] = most, totals[warp] = total;
#pragma unroll
    for (int i = 0; i < CH; i++) sums[warp][lane * CH + i] = acc[i];
    __syncthreads();
    most = -INFINITY, total = 0.0f;
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, mosts[w]);
    float by[WARPS];
    for (int w = 0; w < WARPS; w++) {
        by[w] = totals[w] > 0.0f ? expf(mosts[w] - most) : 0.0f;
        total += totals[w] * by[w];
    }
    float* part = parts + (at * gridDim.z + blockIdx.z) * (head_dim + 2);
    float all = gridDim.z > 1 ? 1.0f : total > 0.0f ? 1.0f / total : 0.0f;
    float* to = gridDim.z > 1 ? part : y + at * head_dim;
    for (uint32_t d = threadIdx.x; d < head_dim; d += 32 * WARPS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += sums[w][d] * by[w];
        to[d] = sum * all;
    }
    if (gridDim.z > 1 && threadIdx.x == 0) part[head_dim] = most, part[head_dim + 1] = total;
}

#define FEW_KEYS(name, ch)                                                                                            \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                          \
        name(const float* q, Cache cache, const Place* places, const int* pages, float* y, float* parts,              \
             uint32_t n_heads, float scale, uint32_t window, uint32_t is_bidirectional, uint32_t own_key) {           \
        few_keys<ch>(q, cache, places, pages, y, parts, n_heads, scale, window, is_bidirectional, own_key);           \
    }

FEW_KEYS(attention_128, 4)
FEW_KEYS(attention_256, 8)
FEW_KEYS(attention_512, 16)

// Joins the parts of each token and head; with `to.planes`, the rows become bytes as well, which takes
// heads of whole blocks.
extern "C" __global__ void __launch_bounds__(128)
    attention_join(const float* parts, float* y, Bytes to, uint32_t n_parts, uint32_t head_dim) {
    __shared__ float row[512];
    wait_before();
    start_next();
    size_t at = blockIdx.x;
    const float* own = parts + at * n_parts * (head_dim + 2);
    float most = -INFINITY, total = 0.0f;
    for (uint32_t p = 0; p < n_parts; p++) most = fmaxf(most, own[p * (head_dim + 2) + head_dim]);
    for (uint32_t p = 0; p < n_parts; p++) {
        const float* part = own + p * (head_dim + 2) + head_dim;
        if (part[1] > 0.0f) total += part[1] * expf(part[0] - most);
    }
    float by = total > 0.0f ? 1.0f / total : 0.0f;
    for (uint32_t d = threadIdx.x; d < head_dim; d += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t p = 0; p < n_parts; p++) {
            const float* part = own + p * (head_dim + 2);
            if (part[head_dim + 1] > 0.0f) sum += part[d] * expf(part[head_dim] - most);
        }
        row[d] = sum * by;
        y[at * head_dim + d] = sum * by;
    }
    if (!to.planes) return;
    __syncthreads();
    uint32_t lane = threadIdx.x & 31, blocks = head_dim / 64;
    for (uint32_t b = threadIdx.x >> 5; b < blocks; b += blockDim.x >> 5)
        put_bytes(to, at * blocks + b, lane, row[b * 64 + 2 * lane], row[b * 64 + 2 * lane + 1]);
}

// Every row attends to every row.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    self_attention(const float* q, const float* k, const float* v, float* y, uint32_t n_rows, uint32_t n_heads,
                   uint32_t head_dim, float scale) {
    __shared__ float shared[2 * WARPS + WARPS * 512];
    wait_before();
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    size_t channels = (size_t)n_heads * head_dim, at = blockIdx.y * (size_t)head_dim;
    Running r;
    begin(r, q + blockIdx.x * channels + at, head_dim, lane);
    for (uint32_t j = warp; j < n_rows; j += WARPS) {
        const float *key = k + j * channels + at, *value = v + j * channels + at;
        float score = scale * dot(r, head_dim, lane, [&](uint32_t d) { return key[d]; });
        take(r, score, head_dim, lane, [&](uint32_t d) { return value[d]; });
    }
    join(r, head_dim, lane, warp, shared);
    if (warp != 0) return;
    float by = 1.0f / r.total;
    for (int i = 0; i < MOST_CHANNELS && lane + 32 * i < head_dim; i++)
        y[blockIdx.x * channels + at + lane + 32 * i] = r.sum[i] * by;
}

// Every row attends to itself and those just before it. `by_dim` multiplies queries, `by_distance` is
// `[window, heads·head_dim]`.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    local_attention(const float* q, const float* k, const float* v, const float* by_dim, const float* by_distance,
                    float* y, uint32_t n_heads, uint32_t head_dim, uint32_t window, float cap, float k_scale) {
    __shared__ float shared[2 * WARPS + WARPS * 512];
    wait_before();
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, t = blockIdx.x;
    size_t channels = (size_t)n_heads * head_dim, at = blockIdx.y * (size_t)head_dim;
    Running r;
    begin(r, q + t * channels + at, head_dim, lane);
#pragma unroll
    for (int i = 0; i < MOST_CHANNELS; i++)
        if (lane + 32 * i < head_dim) r.q[i] *= by_dim[lane + 32 * i];
    for (uint32_t d = warp; d < min(window, t + 1); d += WARPS) {
        const float *key = k + (t - d) * channels + at, *value = v + (t - d) * channels + at;
        const float* distance = by_distance + d * channels + at;
        float content = dot(r, head_dim, lane, [&](uint32_t i) { return key[i]; }) * k_scale;
        float score = content + dot(r, head_dim, lane, [&](uint32_t i) { return distance[i]; });
        take(r, cap * tanhf(score / cap), head_dim, lane, [&](uint32_t i) { return value[i]; });
    }
    join(r, head_dim, lane, warp, shared);
    if (warp != 0) return;
    float by = 1.0f / r.total;
    for (int i = 0; i < MOST_CHANNELS && lane + 32 * i < head_dim; i++)
        y[t * channels + at + lane + 32 * i] = r.sum[i] * by;
}

__device__ __forceinline__ void cache_store(uint8_t* to, float* scales, uint32_t kind, size_t row,
                                                   uint32_t head_dim, const float* from) {
    uint32_t lane = threadIdx.x & 31;
    float scale = 0.0f, inverse = 0.0f;
    if (kind == KV_INT8) {
        float most = 0.0f;
        for (uint32_t d = lane; d < head_dim; d += 32) most = fmaxf(most, fabsf(from[d]));
        most = warp_max(most);
        scale = most / 127.0f;
        inverse = most > 0.0f ? 127.0f / most : 0.0f;
        if (lane == 0) scales[row] = scale;
    }
    for (uint32_t d = lane; d < head_dim; d += 32) {
        size_t at = row * head_dim + d;
        if (kind == KV_BF16) ((__nv_bfloat16*)to)[at] = __float2bfloat16_rn(from[d]);
        else if (kind == KV_INT8) ((int8_t*)to)[at] = (int8_t)__float2int_rn(from[d] * inverse);
        else ((float*)to)[at] = from[d];
    }
}

// A warp for each token and head.
extern "C" __global__ void kv_write(const float* k, const float* v, Cache cache, const Place* places) {
    wait_before();
    Place place = places[blockIdx.x];
    size_t row = cache_row(cache, place.own_page, blockIdx.y, place.position);
    size_t from = ((size_t)blockIdx.x * cache.n_heads + blockIdx.y) * cache.head_dim;
    cache_store(cache.keys, cache.key_scales, cache.kind, row, cache.head_dim, k + from);
    cache_store(cache.values, cache.value_scales, cache.kind, row, cache.head_dim, v + from);
}

// Norms and turns queries and keys, norms values if they are, and writes the cache: all that stands
// between the products and attention. A warp for each token and head: first those of queries, then of
// keys and of values, of which there may be none.
struct Heads {
    const float* q;
    const float* k;
    const float* v;
    float* y;  // queries
    const float* q_weight;
    const float* k_weight;
    const float* angles;
    const Place* places;
    float eps, q_offset, k_offset;
    uint32_t n_q, n_kv, head_dim, pairs, norms_v;
};

extern "C" __global__ void __launch_bounds__(32) heads(Heads p, Cache cache) {
    __shared__ float row[512];
    wait_before();
    start_next();
    uint32_t lane = threadIdx.x, t = blockIdx.x, h = blockIdx.y, dim = p.head_dim, half = dim / 2;
    bool is_q = h < p.n_q, is_v = h >= p.n_q + p.n_kv;
    uint32_t own = is_q ? h : is_v ? h - p.n_q - p.n_kv : h - p.n_q;
    const float* x = (is_q ? p.q : is_v ? p.v : p.k) + ((size_t)t * (is_q ? p.n_q : p.n_kv) + own) * dim;
    float sum = 0.0f;
    for (uint32_t d = lane; d < dim; d += 32) sum += x[d] * x[d];
    sum = warp_sum(sum);
    float root = sqrtf(sum / (float)dim + p.eps);
    const float* w = is_q ? p.q_weight : is_v ? nullptr : p.k_weight;
    float offset = is_q ? p.q_offset : p.k_offset;
    bool norms = !is_v || p.norms_v;
    for (uint32_t d = lane; d < dim; d += 32) {
        float v = norms ? x[d] / root : x[d];
        row[d] = w ? v * (offset + w[d]) : v;
    }
    __syncwarp();
    if (!is_v) {
        for (uint32_t i = lane; i < p.pairs; i += 32) {
            const float* angle = p.angles + ((size_t)t * p.pairs + i) * 2;
            float a = row[i], b = row[i + half];
            row[i] = a * angle[0] - b * angle[1];
            row[i + half] = b * angle[0] + a * angle[1];
        }
        __syncwarp();
    }
    if (is_q) {
        for (uint32_t d = lane; d < dim; d += 32) p.y[((size_t)t * p.n_q + own) * dim + d] = row[d];
        return;
    }
    Place place = p.places[t];
    size_t at = cache_row(cache, place.own_page, own, place.position);
    cache_store(is_v ? cache.values : cache.keys, is_v ? cache.value_scales : cache.key_scales, cache.kind, at, dim, row);
}
