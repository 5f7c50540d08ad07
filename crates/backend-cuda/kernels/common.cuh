// What every kernel file needs: waiting for the kernel before, sums over threads, number formats.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

typedef unsigned long long u64;

// Waits until the kernels before this one in the stream have ended and their writes can be seen.
// With programmatic launch a kernel may begin earlier, so each one waits before it reads or writes
// what another makes.
__device__ __forceinline__ void wait_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel begin: it may load what no kernel makes, and then waits.
__device__ __forceinline__ void start_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

// The sum over all threads of a block of at most 1024, told to all of them. `shared` has room for
// 33 numbers.
__device__ __forceinline__ float block_sum(float x, float* shared) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float y = lane < n_warps ? shared[lane] : 0.0f;
        y = warp_sum(y);
        if (lane == 0) shared[32] = y;
    }
    __syncthreads();
    return shared[32];
}

__device__ __forceinline__ float gelu_tanh(float x) {
    return 0.5f * x * (1.0f + tanhf(0.7978846f * (x + 0.044715f * x * x * x)));
}

// Formats of stored numbers, as the host has them.
enum { KIND_F32 = 0, KIND_F16 = 1, KIND_BF16 = 2 };

__device__ __forceinline__ float load_number(const uint8_t* p, uint32_t kind, size_t i) {
    if (kind == KIND_F16) return __half2float(((const __half*)p)[i]);
    if (kind == KIND_BF16) return __bfloat162float(((const __nv_bfloat16*)p)[i]);
    return ((const float*)p)[i];
}
