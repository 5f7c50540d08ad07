// attention: queries over a cache, heads that share a KV head together, GT of them.
// q, y [len, heads·head_dim].
struct Params {
    len: u32,
    heads: u32,
    head_dim: u32,
    kv_heads: u32,
    capacity: u32,
    scale: f32,
    /// 0 for all keys.
    window: u32,
    /// Whether the query's own key is cached.
    own_key: u32,
}
#include prelude
#include kv_cache

@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> slots: array<i32>;
@group(0) @binding(4) var<storage, read> positions: array<i32>;
@group(0) @binding(5) var<storage, read> keys: array<Stored>;
@group(0) @binding(6) var<storage, read> values: array<Stored>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
#if HORIZONS
@group(0) @binding(8) var<storage, read> horizons: array<i32>;
#endif

/// Where the keys of this workgroup's head begin, its first query, and how many there are.
var<private> base: u32;
var<private> row0: u32;
var<private> n_queries: u32;

fn query_quad(g: u32, i: u32) -> vec4<f32> {
    var quad = vec4<f32>();
    if g < n_queries {
        for (var c = 0u; c < 4u; c++) {
            if 4u * i + c < params.head_dim {
                quad[c] = q[(row0 + g) * params.head_dim + 4u * i + c];
            }
        }
    }
    return quad;
}

fn key_quad(k: i32, i: u32) -> vec4<f32> {
    return widen(keys[(base + u32(k) % params.capacity) * quads() + i]);
}

fn value_quad(k: i32, i: u32) -> vec4<f32> {
    return widen(values[(base + u32(k) % params.capacity) * quads() + i]);
}

fn score(x: f32) -> f32 {
    return x * params.scale;
}
#include attention_tile

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let per_kv = params.heads / params.kv_heads;
    let blocks = (per_kv + GT - 1u) / GT;
    var at = flat_group(group, groups);
    let block = at % blocks;
    let kv_head = at / blocks % params.kv_heads;
    let t = at / blocks / params.kv_heads;
    if t >= len_of(params.len) {
        return;
    }
    let position = positions[t];
    var first = 0;
    if params.window > 0u {
        first = max(0, position - i32(params.window) + 1);
    }
    var last = position;
#if HORIZONS
    last = max(last, horizons[t]);
#endif
    if params.own_key == 0u {
        last = position - 1;
    }
    base = (u32(slots[t]) * params.kv_heads + kv_head) * params.capacity;
    row0 = t * params.heads + kv_head * per_kv + block * GT;
    n_queries = min(GT, per_kv - block * GT);
    attend(lane, first, last);
    for (var g = 0u; g < n_queries; g++) {
        for (var a = 0u; a < ACC; a++) {
            let i = own_quad(lane, a);
            let part = (row0 + g) * params.head_dim;
            let made = result(g, a);
            for (var c = 0u; c < 4u; c++) {
                if 4u * i + c < params.head_dim {
                    y[part + 4u * i + c] = made[c];
                }
            }
        }
    }
}
