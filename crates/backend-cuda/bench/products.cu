// Times products with packed weights in a graph, over buffers that take turns so that no weight is in
// the cache: `nvcc -std=c++17 -O3 -arch=sm_90a -o products products.cu && ./products`.
#include "../kernels/packed.cu"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(x)                                                                             \
    do {                                                                                     \
        cudaError_t e = (x);                                                                 \
        if (e != cudaSuccess) printf("line %d: %s\n", __LINE__, cudaGetErrorString(e)), exit(1); \
    } while (0)

__global__ void __launch_bounds__(512) read_all(const uint4* x, size_t n, uint32_t* y) {
    uint32_t sum = 0;
    size_t step = (size_t)gridDim.x * 512;
    for (size_t i = blockIdx.x * 512 + threadIdx.x; i < n; i += step * 8) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j * step < n) v[j] = __ldcs(x + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j * step < n) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (sum == 12345) *y = sum;
}

__global__ void fill(uint32_t* x, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        x[i] = (uint32_t)i * 2654435761u & 0x3bff3bffu;
}

__global__ void nothing(int* x) {
    wait_before();
    start_next();
}

template <class F>
static float timed(cudaStream_t s, F body, int reps) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    body();
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t a, b;
    cudaEventCreate(&a), cudaEventCreate(&b);
    std::vector<float> times;
    for (int i = 0; i < reps + 3; i++) {
        cudaEventRecord(a, s);
        CHECK(cudaGraphLaunch(exec, s));
        cudaEventRecord(b, s);
        CHECK(cudaStreamSynchronize(s));
        float ms;
        cudaEventElapsedTime(&ms, a, b);
        if (i >= 3) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

int main() {
    int n_sms;
    cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0);
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    size_t pool = (size_t)4 << 30;
    uint8_t* data;
    CHECK(cudaMalloc(&data, pool));
    fill<<<4096, 256>>>((uint32_t*)data, pool / 4);
    float* y;
    int8_t* acts;
    CHECK(cudaMalloc(&y, 64 << 20));
    CHECK(cudaMalloc(&acts, 16 << 20));
    cudaMemset(acts, 1, 16 << 20);
    cudaDeviceSynchronize();
    for (int per_sm : {1, 2, 4}) {
        float ms = timed(s, [&] { read_all<<<n_sms * per_sm, 512, 0, s>>>((uint4*)data, pool / 16, (uint32_t*)y); }, 20);
        printf("read 4 GiB, %d blocks a processor: %.2f TB/s\n", per_sm, pool / ms / 1e9);
    }
    auto launch = [&](auto f, bool early, dim3 grid, int threads, size_t shared, auto... args) {
        cudaLaunchConfig_t c = {};
        c.gridDim = grid, c.blockDim = threads, c.dynamicSmemBytes = shared, c.stream = s;
        cudaLaunchAttribute at = {};
        at.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        at.val.programmaticStreamSerializationAllowed = 1;
        c.attrs = &at, c.numAttrs = early;
        CHECK(cudaLaunchKernelEx(&c, f, args...));
    };
    for (int early = 0; early < 2; early++) {
        float ms = timed(s, [&] { for (int i = 0; i < 500; i++) launch(nothing, early, n_sms, 256, 0, (int*)y); }, 20);
        printf("nothing, early %d: %.2f us a kernel\n", early, ms * 2);
    }
    struct { const char* name; uint32_t tiles, blocks, bits; } shapes[] = {
        {"31B qkv", 1024, 84, 4}, {"31B o", 336, 128, 4}, {"31B gate up", 2688, 84, 4}, {"31B down", 336, 336, 4},
        {"31B head", 16384, 84, 8}, {"E2B q", 128, 24, 4}, {"E2B gate up", 1536, 24, 4}, {"E2B down", 96, 192, 4},
    };
    auto f41 = product_4_1; auto f42 = product_4_2; auto f44 = product_4_4; auto f81 = product_8_1; auto f82 = product_8_2; auto f84 = product_8_4;
    for (auto f : {f41, f42, f44, f81, f82, f84}) CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
    for (auto& sh : shapes)
        for (int tokens : {1, 4, 8, 16})
            for (uint32_t planes : {1u, 3u})
                for (int per_sm : {1, 2}) {
                    if ((tokens > 1 || planes == 1) && per_sm > 1) continue;
                    if (tokens > 1 && planes > 1) continue;
                    size_t shared = (size_t)tokens * sh.blocks * 132 + 8192 * (tokens > 8 ? 4 : tokens > 4 ? 2 : 1) + 16 * 4 * (sh.bits == 4 ? 2 : 1) * block_bytes(sh.bits, 0);
                    if (shared > (227 << 10)) continue;
                    size_t bytes = (size_t)sh.tiles * sh.blocks * block_bytes(sh.bits, 0);
                    int n = std::max(4, std::min(100, (int)(pool / bytes)));
                    auto f = sh.bits == 4 ? (tokens > 8 ? f44 : tokens > 4 ? f42 : f41) : (tokens > 8 ? f84 : tokens > 4 ? f82 : f81);
                    Bytes b = {acts, (float*)(acts + (8 << 20)), (int*)(acts + (12 << 20))};
                    Outs o = {{y, y, y, y}, {~0u, ~0u, ~0u, ~0u}, {sh.tiles * 16, 0, 0, 0}};
                    float us[2];
                    for (int early = 0; early < 2; early++)
                        us[early] = timed(s, [&] {
                            for (int i = 0; i < n; i++) {
                                Packed w = {data + (size_t)(i % std::max<size_t>(1, pool / bytes)) * bytes, sh.tiles * 16, sh.blocks * 64, sh.tiles, sh.blocks, sh.bits, 0};
                                launch(f, early, std::min<uint32_t>(n_sms * per_sm, sh.tiles * (planes > 1 ? 2 : 1)), 512, shared, w, b, o, (uint32_t)tokens, planes, (const int*)nullptr, 1u);
                            }
                        }, 10) * 1000 / n;
                    printf("%-12s %2d tokens, %u planes, %d a processor: %6.1f MB, %6.2f us %.2f TB/s; early %6.2f us %.2f TB/s\n", sh.name, tokens, planes, per_sm, bytes / 1e6, us[0], bytes / us[0] / 1e6, us[1], bytes / us[1] / 1e6);
                }
    // Many rows.
    auto m4 = many_4;
    CHECK(cudaFuncSetAttribute(m4, cudaFuncAttributeMaxDynamicSharedMemorySize, 3 * 128 * 80 * 2));
    for (uint32_t tokens : {64u, 512u, 2048u}) {
        uint32_t tiles = 2688, blocks = 84;
        float* big;
        CHECK(cudaMalloc(&big, (size_t)tokens * tiles * 16 * 4));
        __half* x;
        CHECK(cudaMalloc(&x, (size_t)tokens * blocks * 64 * 2 + tokens * 4));
        cudaMemset(x, 0x11, (size_t)tokens * blocks * 64 * 2 + tokens * 4);
        Packed w = {data, tiles * 16, blocks * 64, tiles, blocks, 4, 0};
        Outs o = {{big, 0, 0, 0}, {~0u, ~0u, ~0u, ~0u}, {tiles * 16, 0, 0, 0}};
        float ms = timed(s, [&] { launch(m4, false, dim3(tiles / 8, (tokens + 127) / 128), 256, 3 * 128 * 80 * 2, w, (const __half*)x, (const float*)(x + (size_t)tokens * blocks * 64), o, tokens); }, 5);
        printf("many: gate up, %u tokens: %.3f ms, %.0f TFLOP/s\n", tokens, ms, 2.0 * tokens * tiles * 16 * blocks * 64 / ms / 1e9);
        cudaFree(big), cudaFree(x);
    }
}
