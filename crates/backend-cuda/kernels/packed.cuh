// Quantised weights in the order of matrix instructions.
//
// A matrix is cut into tiles of 16 rows, a tile into blocks of 64 columns; the blocks of a tile follow
// each other. A block holds codes as the lanes of a warp read them, 16 or 32 bytes each, and then its
// scales: of each row and 32 columns one, as f16 times 2^10.
//
// Lane `4·g + c` has the codes of rows `g` and `g + 8` at columns `4·c .. 4·c + 4` and
// `4·c + 16 .. 4·c + 20` of either half of 32 columns. Codes are signed: less 8 of 4 bits, less 128 of 8.
// Of 4 bits, row `g` has the low halves of bytes and row `g + 8` the high ones.
#pragma once
#include "common.cuh"

// As `packed.rs` has it.
struct Packed {
    const uint8_t* data;
    uint32_t n_rows;    // without those that fill the last tile
    uint32_t n_cols;    // likewise
    uint32_t n_tiles;   // of one matrix
    uint32_t n_blocks;  // of a tile
    uint32_t bits;      // 4 or 8
    uint32_t affine;    // whether each scale has a bias
};

#define SCALE_FACTOR 1024.0f

__host__ __device__ __forceinline__ uint32_t block_bytes(uint32_t bits, uint32_t affine) {
    return bits * 128 + 64 + 64 * affine;
}

// Activations as two bytes each: `x = (256·high + low) · scale`, a scale for each 64 columns.
// Of each row: `[block][plane][column group of 4][half][first, second]` bytes, 128 of a block, high bytes
// first; then the scales and, of each half of a block, the sum of all numbers, as integers.
struct Bytes {
    int8_t* planes;  // `[rows, blocks, 128]`
    float* scales;   // `[rows, blocks]`
    int* sums;       // `[rows, blocks, 2]`
};

// Where the bytes of a column stand in a block's plane.
__device__ __forceinline__ uint32_t byte_place(uint32_t column) {
    uint32_t half = column >> 5, k = column & 31;
    return (k >> 2 & 3) * 16 + half * 8 + (k >> 4) * 4 + (k & 3);
}

// Writes two neighbouring numbers of a block as bytes; a warp for each block.
__device__ __forceinline__ void put_bytes(const Bytes& to, size_t block, uint32_t lane, float a, float b) {
    float most = warp_max(fmaxf(fabsf(a), fabsf(b)));
    float inverse = most > 0.0f ? 32512.0f / most : 0.0f;
    int va = __float2int_rn(a * inverse), vb = __float2int_rn(b * inverse);
    int la = ((va + 128) & 255) - 128, lb = ((vb + 128) & 255) - 128;
    uint32_t place = byte_place(2 * lane);
    int8_t* planes = to.planes + block * 128;
    *(char2*)(planes + place) = make_char2((va - la) >> 8, (vb - lb) >> 8);
    *(char2*)(planes + 64 + place) = make_char2(la, lb);
    int sum = va + vb;
#pragma unroll
    for (int i = 8; i > 0; i >>= 1) sum += __shfl_xor_sync(~0u, sum, i);
    if ((lane & 15) == 0) to.sums[block * 2 + (lane >> 4)] = sum;
    if (lane == 0) to.scales[block] = most / 32512.0f;
}
