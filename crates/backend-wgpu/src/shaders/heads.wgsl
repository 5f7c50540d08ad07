// What stands between the projections and attention, at once: queries are normed and turned; keys
// are, too, and go to the cache; values are normed (V_NORM) and go to the cache.
// q [len, q_heads·HD], k and v [len, kv_heads·HD]; table [len, cosines · sines]; pairs i and i + HD/2
// turn, the first `pairs` of them. One workgroup for each row and head, a quad of each half for each
// invocation. The arithmetic is that of rms_norm, rope and kv_write.
struct Params {
    len: u32,
    q_heads: u32,
    kv_heads: u32,
    pairs: u32,
    /// By queries, keys and values.
    eps: vec4<f32>,
    offset: vec4<f32>,
}
#include prelude
#include kv_cache
#include kv_pages
#include vectors
#include workgroup_sum

@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> v: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> q_weight: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read> k_weight: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> table: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read> places: array<Place>;
@group(0) @binding(9) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(10) var<storage, read_write> keys: array<Stored>;
@group(0) @binding(11) var<storage, read_write> values: array<Stored>;

// Quads of half a head.
const HALF = $(HD/8)u;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let runs = params.q_heads + 2u * params.kv_heads;
    let at = flat_group(group, groups);
    let t = at / runs;
    if t >= len_of(params.len) {
        return;
    }
    var head = at % runs;
    var kind = 0u;
    if head >= params.q_heads {
        head -= params.q_heads;
        kind = 1u;
        if head >= params.kv_heads {
            head -= params.kv_heads;
            kind = 2u;
        }
    }
    let i = min(lane, HALF - 1u);
    let is_own = lane < HALF;
    let turns = kind < 2u && 4u * i < params.pairs;
    let angle = t * (params.pairs / 2u) + select(0u, i, turns);
    let cosine = table[angle];
    let sine = table[angle + params.pairs / 4u];
    let place = places[t];
    var low: vec4<f32>;
    var high: vec4<f32>;
    var low_weight = vec4<f32>(1.0);
    var high_weight = vec4<f32>(1.0);
    let start = (t * select(params.kv_heads, params.q_heads, kind == 0u) + head) * 2u * HALF;
    if kind == 0u {
        low = q[start + i];
        high = q[start + HALF + i];
        low_weight = params.offset.x + q_weight[i];
        high_weight = params.offset.x + q_weight[HALF + i];
    } else if kind == 1u {
        low = k[start + i];
        high = k[start + HALF + i];
        low_weight = params.offset.y + k_weight[i];
        high_weight = params.offset.y + k_weight[HALF + i];
    } else {
        low = v[start + i];
        high = v[start + HALF + i];
    }
    let squares = select(0.0, sum_of(low * low) + sum_of(high * high), is_own);
    var root = sqrt(workgroup_sum(lane, squares) / $(HD).0 + params.eps[kind]);
#if !V_NORM
    if kind == 2u {
        root = 1.0;
    }
#endif
    if !is_own {
        return;
    }
    low = low / root * low_weight;
    high = high / root * high_weight;
    if turns {
        let turned = low * cosine - high * sine;
        high = high * cosine + low * sine;
        low = turned;
    }
    if kind == 0u {
        y[start + i] = low;
        y[start + HALF + i] = high;
        return;
    }
    let row = row_in_page(place.page, head, params.kv_heads, u32(place.position)) * 2u * HALF;
    if kind == 1u {
        keys[row + i] = narrow(low);
        keys[row + HALF + i] = narrow(high);
    } else {
        values[row + i] = narrow(low);
        values[row + HALF + i] = narrow(high);
    }
}
