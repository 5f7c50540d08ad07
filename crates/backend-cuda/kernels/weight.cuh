// A weight as it is stored, part by part: any encoding, decoded exactly as the program defines it.
#pragma once
#include "common.cuh"

// As `raw.rs` has it.
struct Raw {
    const uint8_t* data;
    const uint8_t* scale;
    const uint8_t* bias;
    const uint8_t* super_scale;
    const uint8_t* super_bias;
    uint32_t cols;
    uint32_t bits;  // 0: dense
    uint32_t row_bytes;
    uint32_t kind;  // of dense numbers, of plain scales, of floats over nested scales
    uint32_t group;
    uint32_t offset;
    uint32_t affine;
    uint32_t per;     // 0: plain scales
    uint32_t is_i8;   // whether nested scales are signed
    uint32_t groups;  // of a row
};

__device__ __forceinline__ float raw_factor(const Raw& w, const uint8_t* sub, const uint8_t* sup,
                                                   size_t row, uint32_t g) {
    size_t at = row * w.groups + g;
    if (w.per == 0) return load_number(sub, w.kind, at);
    float own = w.is_i8 ? (float)((const int8_t*)sub)[at] : (float)sub[at];
    return __fmul_rn(own, load_number(sup, w.kind, row * (w.groups / w.per) + g / w.per));
}

__device__ __forceinline__ uint32_t raw_code(const Raw& w, size_t row, uint32_t k) {
    const uint8_t* p = w.data + row * w.row_bytes;
    if (w.bits == 8) return p[k];
    if (w.bits == 4) return p[k >> 1] >> ((k & 1) * 4) & 15;
    uint32_t bit = k * w.bits, byte = bit >> 3;
    uint32_t two = p[byte];
    if ((bit & 7) + w.bits > 8) two |= (uint32_t)p[byte + 1] << 8;
    return two >> (bit & 7) & ((1u << w.bits) - 1);
}

// One number of a weight.
__device__ __forceinline__ float raw_number(const Raw& w, size_t row, uint32_t k) {
    if (w.bits == 0) return load_number(w.data + row * w.row_bytes, w.kind, k);
    uint32_t g = k / w.group;
    float x = __fmul_rn((float)((int)raw_code(w, row, k) - (int)w.offset),
                        raw_factor(w, w.scale, w.super_scale, row, g));
    if (w.affine) x = __fadd_rn(x, raw_factor(w, w.bias, w.super_bias, row, g));
    return x;
}
