// Caches of keys and values: `[page][head][position][channel]`, keys and values apart.
#pragma once
#include "common.cuh"

#define PAGE 128
enum { KV_F32 = 0, KV_BF16 = 1, KV_INT8 = 2 };

// As `cache.rs` has it.
struct Cache {
    uint8_t* keys;
    uint8_t* values;
    float* key_scales;  // `[page][head][position]`, of bytes only
    float* value_scales;
    uint32_t kind;
    uint32_t n_heads;
    uint32_t head_dim;
    uint32_t unused;
};

// Where one token stands in a group of caches, as `feeds.rs` has it.
struct Place {
    int position;
    int table;    // where the pages of its sequence begin, less the number of the first of them
    int horizon;  // the last position that it sees in a block
    int own_page;
};

// The row of a position of a page and head, counted in rows of `head_dim` numbers.
__device__ __forceinline__ size_t cache_row(const Cache& c, int page, uint32_t head, uint32_t position) {
    return ((size_t)page * c.n_heads + head) * PAGE + (position & (PAGE - 1));
}

__device__ __forceinline__ float cache_load(const uint8_t* p, const float* scales, uint32_t kind, size_t row,
                                                   uint32_t head_dim, uint32_t d) {
    size_t at = row * head_dim + d;
    if (kind == KV_BF16) return __bfloat162float(((const __nv_bfloat16*)p)[at]);
    if (kind == KV_INT8) return (float)((const int8_t*)p)[at] * scales[row];
    return ((const float*)p)[at];
}

// The keys that a token sees: `first..end`.
struct Seen {
    int first, end;
};

__device__ __forceinline__ Seen seen_keys(const Place& p, uint32_t window, uint32_t is_bidirectional,
                                                 uint32_t own_key) {
    Seen s;
    s.end = !own_key ? p.position : is_bidirectional ? p.horizon + 1 : p.position + 1;
    s.first = window ? max(0, p.position - (int)window + 1) : 0;
    return s;
}
