// Products with packed weights: for few rows of activations as bytes, for many as halves.
#include "packed.cuh"
#include "weight.cuh"

// ---- Packing --------------------------------------------------------------------------------------

// Packs rows of a weight as it is stored. `w` begins at row 0 of `n_rows`, and `to` at the tile of that
// row; a thread for each lane of a block.
extern "C" __global__ void pack(Raw w, uint8_t* to, uint32_t n_rows, uint32_t n_blocks, uint32_t bits, uint32_t affine) {
    wait_before();
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    uint32_t lane = i & 31, block = i / 32 % n_blocks;
    size_t tile = i / 32 / n_blocks;
    if (tile * 16 >= n_rows) return;
    uint32_t g = lane >> 2, c = lane & 3, half_code = bits == 4 ? 8 : 128;
    uint8_t* record = to + (tile * n_blocks + block) * block_bytes(bits, affine);
    uint32_t words[8] = {};
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t high = 0; high < 2; high++)
            for (uint32_t eighth = 0; eighth < 2; eighth++)
                for (uint32_t j = 0; j < 4; j++) {
                    size_t row = tile * 16 + g + 8 * eighth;
                    uint32_t k = block * 64 + half * 32 + high * 16 + c * 4 + j;
                    bool in = row < n_rows && k < w.cols;
                    int less = affine ? (int)half_code : (int)w.offset;
                    uint32_t q = in ? (uint32_t)((int)raw_code(w, row, k) - less) : 0;
                    if (bits == 4) words[half * 2 + high] |= (q & 15) << (8 * j + 4 * eighth);
                    else words[half * 4 + high * 2 + eighth] |= (q & 255) << (8 * j);
                }
    for (uint32_t n = 0; n < bits; n++) ((uint32_t*)record)[lane * bits + n] = words[n];
    // Scales: `[g][half][eighth]`.
    uint32_t half = c >> 1, eighth = c & 1, k = block * 64 + half * 32;
    size_t row = tile * 16 + g + 8 * eighth;
    bool in = row < n_rows && k < w.cols;
    float scale = in ? raw_factor(w, w.scale, w.super_scale, row, k / w.group) : 0.0f;
    __half* scales = (__half*)(record + bits * 128);
    float most = 65504.0f;
    scales[g * 4 + c] = __float2half_rn(fminf(fmaxf(scale * SCALE_FACTOR, -most), most));
    if (!affine) return;
    float bias = in && w.affine ? raw_factor(w, w.bias, w.super_bias, row, k / w.group) : 0.0f;
    bias += (float)((int)half_code - (int)w.offset) * scale;
    scales[32 + g * 4 + c] = __float2half_rn(fminf(fmaxf(bias * SCALE_FACTOR, -most), most));
}

__device__ __forceinline__ float packed_number(const Packed& w, size_t row, uint32_t k) {
    uint32_t r = row & 15, eighth = r >> 3, half = k >> 5 & 1, high = k >> 4 & 1, j = k & 3;
    uint32_t lane = (r & 7) * 4 + (k >> 2 & 3);
    const uint8_t* record = w.data + ((row >> 4) * w.n_blocks + (k >> 6)) * block_bytes(w.bits, w.affine);
    int q;
    if (w.bits == 4) {
        uint32_t byte = record[lane * 16 + half * 8 + high * 4 + j];
        q = (int)((byte >> (4 * eighth) & 15) ^ 8) - 8;
    } else {
        q = (int8_t)record[lane * 32 + half * 16 + high * 8 + eighth * 4 + j];
    }
    const __half* scales = (const __half*)(record + w.bits * 128);
    uint32_t at = (r & 7) * 4 + half * 2 + eighth;
    float x = (float)q * __half2float(scales[at]);
    if (w.affine) x += __half2float(scales[32 + at]);
    return x * (1.0f / SCALE_FACTOR);
}

extern "C" __global__ void embed_packed(Packed w, const int* ids, const int* soft, float* y, size_t n, float scale,
                                        uint32_t start, uint32_t stride, uint32_t soft_id) {
    wait_before();
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        size_t t = i / w.n_cols;
        size_t row = soft && soft[t] >= 0 ? (size_t)soft_id : start + (size_t)stride * (size_t)ids[t];
        y[i] = packed_number(w, row, i % w.n_cols) * scale;
    }
}

// ---- Activations as bytes -------------------------------------------------------------------------

// Rows `[rows, n_cols]`; a warp for each block of each row.
extern "C" __global__ void rows_to_bytes(const float* x, Bytes to, uint32_t rows, uint32_t n_cols, uint32_t n_blocks) {
    wait_before();
    start_next();
    size_t block = blockIdx.x * (size_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    uint32_t lane = threadIdx.x & 31;
    if (block >= (size_t)rows * n_blocks) return;
    uint32_t k = block % n_blocks * 64 + 2 * lane;
    const float* row = x + block / n_blocks * n_cols;
    put_bytes(to, block, lane, k < n_cols ? row[k] : 0.0f, k + 1 < n_cols ? row[k + 1] : 0.0f);
}

// ---- Few rows -------------------------------------------------------------------------------------

// Where outputs go: up to four matrices may stand one after another and be multiplied at once.
struct Outs {
    float* y[4];
    uint32_t end_tile[4];
    uint32_t n_rows[4];
};

#define WARPS 16

__device__ __forceinline__ void mma_bytes(int* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

// What a lane reads of a block.
template <int BITS, bool AFFINE>
struct Slot {
    uint4 codes[BITS / 4];
    uint2 scales;
    uint2 biases;

    __device__ __forceinline__ void load(const uint8_t* record, uint32_t lane) {
        const uint4* from = (const uint4*)record + lane * (BITS / 4);
#pragma unroll
        for (int i = 0; i < BITS / 4; i++) codes[i] = from[i];
        const uint2* s = (const uint2*)(record + BITS * 128) + (lane >> 2);
        scales = s[0];
        if (AFFINE) biases = s[8];
    }

    // The codes of one half, as the 16-row operand; of 4 bits times 16.
    __device__ __forceinline__ void operand(int half, uint32_t* a) const {
        if (BITS == 4) {
            uint32_t w0 = half ? codes[0].z : codes[0].x, w1 = half ? codes[0].w : codes[0].y;
            a[0] = w0 << 4 & 0xf0f0f0f0u;
            a[1] = w0 & 0xf0f0f0f0u;
            a[2] = w1 << 4 & 0xf0f0f0f0u;
            a[3] = w1 & 0xf0f0f0f0u;
        } else {
            const uint4& w = codes[half ? BITS / 4 - 1 : 0];
            a[0] = w.x, a[1] = w.y, a[2] = w.z, a[3] = w.w;
        }
    }
};

__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

// y[t] = x[t] · w for up to 4·NT rows of activations. Blocks of the whole matrix are dealt to blocks of
// threads: whole tiles, or, with several planes, equal runs of blocks; a tile that several blocks of
// threads share has a part in a plane of each, `[planes, rows, n_rows]`, and planes without a part are 0.
// Inside, each warp has a run of blocks, which follow each other in memory, and a ring of its own in
// shared memory that the next ones are copied to while it works on one.
// With `experts`, each row of activations (`blockIdx.y`) has a matrix of its own.
template <int BITS, bool AFFINE, int NT>
__device__ __forceinline__ void product(const Packed& w, const Bytes& x, const Outs& outs, uint32_t n_tokens,
                                               uint32_t n_planes, const int* experts, uint32_t per) {
    extern __shared__ __align__(16) uint8_t shared[];
    constexpr uint32_t RECORD = BITS * 128 + 64 + (AFFINE ? 64 : 0);
    // Blocks that are fetched at once, and how often ahead.
    constexpr uint32_t STAGE = BITS == 4 ? 2 : 1, STAGES_AHEAD = 4;
    constexpr uint32_t CHUNKS = RECORD * STAGE / 16;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    const uint32_t nb = w.n_blocks, n_ctas = gridDim.x, units = w.n_tiles * nb;
    auto cta_start = [&](uint32_t b) {
        return n_planes > 1 ? (uint32_t)((u64)b * units / n_ctas) : (uint32_t)((u64)b * w.n_tiles / n_ctas) * nb;
    };
    const uint32_t u0 = cta_start(blockIdx.x), u1 = cta_start(blockIdx.x + 1), length = u1 - u0;
    auto run_start = [&](uint32_t i) { return u0 + (uint32_t)((u64)i * length / WARPS); };
    const uint32_t first = run_start(warp), end = run_start(warp + 1);

    start_next();
    const uint8_t* data = w.data;
    if (experts) {
        // The choice of experts is made by an earlier kernel.
        wait_before();
        data += (size_t)experts[blockIdx.y] * units * RECORD;
    }
    uint8_t* ring = shared + warp * (STAGES_AHEAD * STAGE * RECORD);
    const uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    // The last stage of a run may have fewer blocks, of which nothing after the end is read.
    const uint32_t n_stages = (end - first + STAGE - 1) / STAGE;
    const uint8_t* from = data + (size_t)first * RECORD + lane * 16;
    const uint32_t n_chunks = (end - first) * (RECORD / 16);
    auto fetch = [&](uint32_t stage, uint32_t slot) {
        if (stage < n_stages) {
#pragma unroll
            for (uint32_t i = 0; i < CHUNKS; i += 32) {
                uint32_t chunk = i + lane;
                if ((i + 32 <= CHUNKS || chunk < CHUNKS) && stage * CHUNKS + chunk < n_chunks)
                    copy_chunk(ring_at + slot * (STAGE * RECORD) + chunk * 16,
                               from + (size_t)stage * (STAGE * RECORD) + i * 16);
            }
        }
        asm volatile("cp.async.commit_group;");
    };
#pragma unroll
    for (int i = 0; i < STAGES_AHEAD - 1; i++) fetch(i, i);
    if (!experts) wait_before();

    // Activations into shared memory: bytes, scales, sums.
    uint8_t* after = shared + WARPS * STAGES_AHEAD * STAGE * RECORD;
    uint4* planes = (uint4*)after;
    float* scales = (float*)(after + (size_t)n_tokens * nb * 128);
    int* sums = (int*)(scales + n_tokens * nb);
    float* parts = (float*)(sums + (AFFINE ? 2 * n_tokens * nb : 0));
    {
        size_t row = experts ? blockIdx.y / per : 0;
        const uint4* from = (const uint4*)(x.planes + row * nb * 128);
        for (uint32_t i = threadIdx.x; i < n_tokens * nb * 8; i += WARPS * 32) planes[i] = from[i];
        for (uint32_t i = threadIdx.x; i < n_tokens * nb; i += WARPS * 32) scales[i] = x.scales[row * nb + i];
        if (AFFINE)
            for (uint32_t i = threadIdx.x; i < 2 * n_tokens * nb; i += WARPS * 32) sums[i] = x.sums[row * nb * 2 + i];
    }
    __syncthreads();

    const float factor = 1.0f / (SCALE_FACTOR * (BITS == 4 ? 16.0f : 1.0f));
    auto put = [&](uint32_t tile, uint32_t row, uint32_t token, uint32_t plane, float value) {
        uint32_t m = 0;
#pragma unroll
        for (int i = 0; i < 3; i++) m += tile >= outs.end_tile[i];
        uint32_t n = (tile - (m ? outs.end_tile[m - 1] : 0)) * 16 + row;
        if (n >= outs.n_rows[m]) return;
        uint32_t all = experts ? gridDim.y : n_tokens;
        size_t at = ((size_t)plane * all + (experts ? blockIdx.y : token)) * outs.n_rows[m] + n;
        outs.y[m][at] = value;
    };

    float acc[NT][2] = {};
    uint32_t tile = first / nb, block = first % nb;
    bool from_start = block == 0;
    uint32_t which = 0, slot = 0;
    for (uint32_t stage = 0; stage < n_stages; stage++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES_AHEAD - 2));
        __syncwarp();
        {
            uint32_t next = slot == 0 ? STAGES_AHEAD - 1 : slot - 1;
            fetch(stage + STAGES_AHEAD - 1, next);
        }
        const uint8_t* records = ring + slot * (STAGE * RECORD);
        slot = slot == STAGES_AHEAD - 1 ? 0 : slot + 1;
        const uint32_t here = first + stage * STAGE;
#pragma unroll
        for (uint32_t i = 0; i < STAGE; i++) {
            if (here + i >= end) break;
            Slot<BITS, AFFINE> own;
            own.load(records + i * RECORD, lane);
            uint32_t a[2][4];
            own.operand(0, a[0]);
            own.operand(1, a[1]);
            float2 s0 = __half22float2(*(const __half2*)&own.scales.x);
            float2 s1 = __half22float2(*(const __half2*)&own.scales.y);
            float2 b0 = {}, b1 = {};
            if (AFFINE) {
                b0 = __half22float2(*(const __half2*)&own.biases.x);
                b1 = __half22float2(*(const __half2*)&own.biases.y);
            }
#pragma unroll
            for (int t = 0; t < NT; t++) {
                uint32_t token_b = min(t * 4 + (g >> 1), n_tokens - 1), token_c = min(t * 4 + c, n_tokens - 1);
                uint4 b = planes[(token_b * nb + block) * 8 + (g & 1) * 4 + c];
                float scale = scales[token_c * nb + block];
                int p[4], q[4];
                mma_bytes(p, a[0], b.x, b.y);
                mma_bytes(q, a[1], b.z, b.w);
                float low = s0.x * (float)(p[0] * 256 + p[1]) + s1.x * (float)(q[0] * 256 + q[1]);
                float high = s0.y * (float)(p[2] * 256 + p[3]) + s1.y * (float)(q[2] * 256 + q[3]);
                if (AFFINE) {
                    const int* sum = sums + (token_c * nb + block) * 2;
                    float f0 = (float)sum[0] * (BITS == 4 ? 16.0f : 1.0f);
                    float f1 = (float)sum[1] * (BITS == 4 ? 16.0f : 1.0f);
                    low += b0.x * f0 + b1.x * f1;
                    high += b0.y * f0 + b1.y * f1;
                }
                acc[t][0] += low * scale;
                acc[t][1] += high * scale;
            }
            if (++block == nb || here + i + 1 == end) {
                bool whole = from_start && block == nb;
#pragma unroll
                for (int t = 0; t < NT; t++) {
                    uint32_t token = t * 4 + c;
                    if (token < n_tokens) {
                        if (whole) {
                            put(tile, g, token, 0, acc[t][0] * factor);
                            put(tile, g + 8, token, 0, acc[t][1] * factor);
                            for (uint32_t plane = 1; plane < n_planes; plane++) {
                                put(tile, g, token, plane, 0.0f);
                                put(tile, g + 8, token, plane, 0.0f);
                            }
                        } else {
                            float* part = parts + ((warp * 2 + which) * 16) * (NT * 4) + token;
                            part[g * (NT * 4)] = acc[t][0];
                            part[(g + 8) * (NT * 4)] = acc[t][1];
                        }
                    }
                    acc[t][0] = acc[t][1] = 0.0f;
                }
                which = 1;
                from_start = true;
                block = 0;
                tile++;
            }
        }
        // The ring's slot is written again by the next fetch.
        __syncwarp();
    }
    __syncthreads();
    if (length == 0) return;
    // Tiles that several warps share.
    uint32_t tile0 = u0 / nb, tile1 = (u1 - 1) / nb;
    uint32_t per_tile = 16 * n_tokens;
    for (uint32_t i = threadIdx.x; i < (tile1 - tile0 + 1) * per_tile; i += WARPS * 32) {
        uint32_t t = tile0 + i / per_tile, row = i % per_tile % 16, token = i % per_tile / 16;
        uint32_t from = t * nb, to = from + nb;
        float sum = 0.0f;
        bool is_shared = true;
        for (uint32_t v = 0; v < WARPS; v++) {
            uint32_t a = run_start(v), b = run_start(v + 1);
            if (a >= b || a >= to || b <= from) continue;
            if (a <= from && b >= to) is_shared = false;
            else sum += parts[((v * 2 + (t == a / nb ? 0 : 1)) * 16 + row) * (NT * 4) + token];
        }
        if (!is_shared) continue;
        uint32_t plane = 0, last = 0;
        if (n_planes > 1) {
            auto owner = [&](uint32_t u) { return (uint32_t)(((u64)(u + 1) * n_ctas - 1) / units); };
            plane = blockIdx.x - owner(from);
            last = owner(to - 1) == blockIdx.x;
        }
        put(t, row, token, plane, sum * factor);
        if (last)
            for (uint32_t other = plane + 1; other < n_planes; other++) put(t, row, token, other, 0.0f);
    }
}

#define PRODUCT(name, bits, affine, nt, blocks)                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, blocks)                                              \
        name(Packed w, Bytes x, Outs outs, uint32_t n_tokens, uint32_t n_planes, const int* experts, uint32_t per) { \
        product<bits, affine, nt>(w, x, outs, n_tokens, n_planes, experts, per);                           \
    }

PRODUCT(product_4_1, 4, false, 1, 2)
PRODUCT(product_4_2, 4, false, 2, 1)
PRODUCT(product_4_4, 4, false, 4, 1)
PRODUCT(product_8_1, 8, false, 1, 2)
PRODUCT(product_8_2, 8, false, 2, 1)
PRODUCT(product_8_4, 8, false, 4, 1)
PRODUCT(product_4a_1, 4, true, 1, 1)
PRODUCT(product_4a_2, 4, true, 2, 1)
PRODUCT(product_4a_4, 4, true, 4, 1)
PRODUCT(product_8a_1, 8, true, 1, 1)
PRODUCT(product_8a_2, 8, true, 2, 1)
PRODUCT(product_8a_4, 8, true, 4, 1)

// ---- Many rows ------------------------------------------------------------------------------------

// Rows as halves, each row divided by a number of its own; columns of four as 0, 2, 1, 3. A block for
// each row.
extern "C" __global__ void rows_to_halves(const float* x, __half* y, float* factors, uint32_t n_cols, uint32_t width) {
    __shared__ float mosts[32];
    wait_before();
    x += (size_t)blockIdx.x * n_cols;
    y += (size_t)blockIdx.x * width;
    float most = 0.0f;
    for (uint32_t k = threadIdx.x; k < n_cols; k += blockDim.x) most = fmaxf(most, fabsf(x[k]));
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0) mosts[threadIdx.x >> 5] = most;
    __syncthreads();
    for (uint32_t i = 0; i < blockDim.x / 32; i++) most = fmaxf(most, mosts[i]);
    // A power of two, so that nothing but the halves rounds.
    float by = most > 0.0f ? exp2f(fminf(-ceilf(log2f(most)), 100.0f)) : 0.0f;
    for (uint32_t k = threadIdx.x; k < width; k += blockDim.x) {
        uint32_t j = k & 3, to = (k & ~3u) + (j == 1 ? 2 : j == 2 ? 1 : j);
        y[to] = __float2half_rn(k < n_cols ? x[k] * by : 0.0f);
    }
    if (threadIdx.x == 0) factors[blockIdx.x] = by > 0.0f ? 1.0f / by : 0.0f;
}

__device__ __forceinline__ void mma_halves(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t bits_of(__half2 x) { return *(uint32_t*)&x; }
__device__ __forceinline__ __half2 halves_of(uint32_t x) { return *(__half2*)&x; }

#define TILE_TOKENS 128
#define STAGES 3
#define ROW_HALVES 80  // 64 and 16 that keep lanes on different banks

__device__ __forceinline__ void copy_async(void* to, const void* from, bool in) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    int bytes = in ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes));
}

// 128 outputs × 128 tokens. Eight warps, each with 64 outputs × 32 tokens. Weights go from memory to
// registers, where they become halves; tokens go through shared memory.
template <int BITS, bool AFFINE>
__device__ __forceinline__ void many(const Packed& w, const __half* x, const float* factors, const Outs& outs,
                                            uint32_t n_tokens) {
    extern __shared__ __align__(16) uint8_t shared[];
    __half* tiles = (__half*)shared;  // `[STAGES][TILE_TOKENS][ROW_HALVES]`
    wait_before();
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, c = lane & 3;
    const uint32_t nb = w.n_blocks, width = nb * 64;
    const uint32_t tile0 = blockIdx.x * 8 + (warp & 1) * 4, t0 = blockIdx.y * TILE_TOKENS;
    const uint32_t own = (warp >> 1) * 32;
    constexpr uint32_t RECORD = BITS * 128 + 64 + (AFFINE ? 64 : 0);
    auto fetch = [&](uint32_t block, uint32_t stage) {
        __half* to = tiles + stage * TILE_TOKENS * ROW_HALVES;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t at = threadIdx.x + i * 256, row = at >> 3, part = at & 7;
            bool in = t0 + row < n_tokens && block < nb;
            const __half* from = x + (in ? (size_t)(t0 + row) * width + block * 64 + part * 8 : 0);
            copy_async(to + row * ROW_HALVES + part * 8, from, in);
        }
        asm volatile("cp.async.commit_group;");
    };
    float acc[4][4][4] = {};
    Slot<BITS, AFFINE> slots[4];
    auto load = [&](uint32_t block) {
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t tile = min(tile0 + m, w.n_tiles - 1);
            slots[m].load(w.data + ((size_t)tile * nb + block) * RECORD, lane);
        }
    };
    for (uint32_t s = 0; s < STAGES - 1; s++) fetch(s, s);
    load(0);
    for (uint32_t block = 0; block < nb; block++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        fetch(block + STAGES - 1, (block + STAGES - 1) % STAGES);
        const __half* tile = tiles + block % STAGES * TILE_TOKENS * ROW_HALVES + own * ROW_HALVES;
        Slot<BITS, AFFINE> now[4];
#pragma unroll
        for (int m = 0; m < 4; m++) now[m] = slots[m];
        if (block + 1 < nb) load(block + 1);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint2 b[4][2];
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int high = 0; high < 2; high++)
                    b[n][high] = *(const uint2*)(tile + (n * 8 + g) * ROW_HALVES + half * 32 + high * 16 + c * 4);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                __half2 both = halves_of(half ? now[m].scales.y : now[m].scales.x);
                __half2 s[2] = {__low2half2(both), __high2half2(both)}, z[2];
                if (AFFINE) {
                    __half2 biases = halves_of(half ? now[m].biases.y : now[m].biases.x);
                    z[0] = __low2half2(biases), z[1] = __high2half2(biases);
                }
#pragma unroll
                for (int high = 0; high < 2; high++) {
                    uint32_t a[4];
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        uint32_t even, odd;
                        __half2 less;
                        if (BITS == 4) {
                            const uint4& q = now[m].codes[0];
                            uint32_t word = half ? (high ? q.w : q.z) : (high ? q.y : q.x);
                            word ^= 0x88888888u;
                            even = word >> (4 * e) & 0x000f000fu;
                            odd = word >> (4 * e + 8) & 0x000f000fu;
                            less = __float2half2_rn(1032.0f);
                        } else {
                            const uint4& q = now[m].codes[half ? BITS / 4 - 1 : 0];
                            uint32_t word = high ? (e ? q.w : q.z) : (e ? q.y : q.x);
                            word ^= 0x80808080u;
                            even = word & 0x00ff00ffu;
                            odd = word >> 8 & 0x00ff00ffu;
                            less = __float2half2_rn(1152.0f);
                        }
                        __half2 x0 = __hsub2(halves_of(even | 0x64006400u), less);
                        __half2 x1 = __hsub2(halves_of(odd | 0x64006400u), less);
                        a[e] = bits_of(AFFINE ? __hfma2(x0, s[e], z[e]) : __hmul2(x0, s[e]));
                        a[2 + e] = bits_of(AFFINE ? __hfma2(x1, s[e], z[e]) : __hmul2(x1, s[e]));
                    }
#pragma unroll
                    for (int n = 0; n < 4; n++) mma_halves(acc[m][n], a, b[n][high].x, b[n][high].y);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        uint32_t tile = tile0 + m, at = 0;
        if (tile >= w.n_tiles) break;
#pragma unroll
        for (int i = 0; i < 3; i++) at += tile >= outs.end_tile[i];
        uint32_t row = (tile - (at ? outs.end_tile[at - 1] : 0)) * 16 + g, n_rows = outs.n_rows[at];
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t t = t0 + own + n * 8 + 2 * c + (i & 1), r = row + (i >> 1) * 8;
                if (t < n_tokens && r < n_rows)
                    outs.y[at][(size_t)t * n_rows + r] = acc[m][n][i] * (factors[t] * (1.0f / SCALE_FACTOR));
            }
    }
}

#define MANY(name, bits, affine)                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                       \
        name(Packed w, const __half* x, const float* factors, Outs outs, uint32_t n_tokens) {               \
        many<bits, affine>(w, x, factors, outs, n_tokens);                                                  \
    }

MANY(many_4, 4, false)
MANY(many_8, 8, false)
MANY(many_4a, 4, true)
MANY(many_8a, 8, true)
