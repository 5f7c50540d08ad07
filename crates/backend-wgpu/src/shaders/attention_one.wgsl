// All between the projections and the output's for one token: its query is normed and turned, and so
// are its key and value on their way to the cache (WRITES, V_NORM); then attention over all keys.
// q [heads·HD], k and v [kv_heads·HD]; table [cosines · sines]; pairs i and i + HD/2 turn, the first
// `pairs` of them; y [heads·HD], also in bytes (BYTES).
// One workgroup for each head. Its subgroups of SG share the keys, UN at a time, and hold the query and
// their sums in registers: an invocation has J pairs of quads, one of each half. There are no more
// subgroups than invocations in one. The new key is never read from the cache, so nobody waits for who
// writes it.
struct Params {
    len: u32,
    heads: u32,
    kv_heads: u32,
    scale: f32,
    /// 0 for all keys.
    window: u32,
    /// Whether a query sees the key at its own position.
    own_key: u32,
    pairs: u32,
    pad: u32,
    /// By queries, keys and values.
    eps: vec4<f32>,
    offset: vec4<f32>,
}
#include prelude
#include kv_cache
#include kv_pages

@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> q_weight: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> table: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> places: array<Place>;
@group(0) @binding(6) var<storage, read> pages: array<u32>;
@group(0) @binding(7) var<storage, read_write> y: array<vec4<f32>>;
#if WRITES
@group(0) @binding(8) var<storage, read_write> keys: array<Stored>;
@group(0) @binding(9) var<storage, read_write> values: array<Stored>;
@group(0) @binding(10) var<storage, read> k: array<vec4<f32>>;
@group(0) @binding(11) var<storage, read> k_weight: array<vec4<f32>>;
@group(0) @binding(12) var<storage, read> v: array<vec4<f32>>;
#else
@group(0) @binding(8) var<storage, read> keys: array<Stored>;
@group(0) @binding(9) var<storage, read> values: array<Stored>;
#endif
#if BYTES
@group(0) @binding($(10+3*WR)) var<storage, read_write> bytes: array<u32>;
@group(0) @binding($(11+3*WR)) var<storage, read_write> bytes_scales: array<vec4<f32>>;
#include linear/byte_parts
#include linear/keep_bytes
#endif
#include attention_seen

const QUADS = $(HD/4)u;
// Quads of half a head.
const HALF = $(HD/8)u;
// Subgroups.
const N_PARTS = $(WG/SG)u;
const LOW: f32 = -3.0e38;

var<workgroup> found: array<vec2<f32>, N_PARTS>;
var<workgroup> sums: array<vec4<f32>, N_PARTS * QUADS>;

/// The page of the key that is `n` after the first, or of the last.
fn page_of(table: i32, seen: vec2<i32>, n: i32) -> u32 {
    return pages[table + ((seen.x + min(n, max(seen.y - seen.x, 0))) >> PAGE_BITS)];
}

fn sum4(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let head = flat_group(group, groups);
    if len_of(params.len) == 0u || head >= params.heads {
        return;
    }
    let per_kv = params.heads / params.kv_heads;
    let kv_head = head / per_kv;
    let lane = thread % $(SG)u;
    let part = thread / $(SG)u;
    let place = places[0];
    let seen = seen_keys(place);
    let position = place.position;
    // Of the keys that come first; those of the next are looked up while these are worked on.
#for U 0 UN
    var page_$(U) = page_of(place.table, seen, i32(part) + $(U*WG/SG));
#endfor
    // All that does not depend on anything is asked for at once. A pair that no invocation should
    // have is the last one again, and counts nothing.
#for I 0 J
    let i_$(I) = min(lane + $(I*SG)u, HALF - 1u);
    let own_$(I) = lane + $(I*SG)u < HALF;
    let turns_$(I) = 4u * i_$(I) < params.pairs;
    let angle_$(I) = select(0u, i_$(I), turns_$(I));
    let cosine_$(I) = select(vec4<f32>(1.0), table[angle_$(I)], turns_$(I));
    let sine_$(I) = select(vec4<f32>(), table[angle_$(I) + params.pairs / 4u], turns_$(I));
    var q_low_$(I) = q[head * QUADS + i_$(I)];
    var q_high_$(I) = q[head * QUADS + HALF + i_$(I)];
    let low_weight_$(I) = params.offset.x + q_weight[i_$(I)];
    let high_weight_$(I) = params.offset.x + q_weight[HALF + i_$(I)];
    var low_$(I) = vec4<f32>();
    var high_$(I) = vec4<f32>();
#endfor
    var most = LOW;
    var total = 0.0;
    var q_squares = 0.0;
#for I 0 J
    q_squares += select(0.0, sum4(q_low_$(I) * q_low_$(I)) + sum4(q_high_$(I) * q_high_$(I)), own_$(I));
#endfor
    let q_root = sqrt(subgroupAdd(q_squares) / $(HD).0 + params.eps.x);
#for I 0 J
    {
        let low = q_low_$(I) / q_root * low_weight_$(I);
        let high = q_high_$(I) / q_root * high_weight_$(I);
        let turned = low * cosine_$(I) - high * sine_$(I);
        q_high_$(I) = select(vec4<f32>(), (high * cosine_$(I) + low * sine_$(I)) * params.scale, own_$(I));
        q_low_$(I) = select(vec4<f32>(), turned * params.scale, own_$(I));
    }
#endfor
#if WRITES
    // The newest key is the business of the last subgroup, which has the fewest others.
    if part == N_PARTS - 1u {
        var k_squares = 0.0;
        var v_squares = 0.0;
#for I 0 J
        let k_low_$(I) = k[kv_head * QUADS + i_$(I)];
        let k_high_$(I) = k[kv_head * QUADS + HALF + i_$(I)];
        let v_low_$(I) = v[kv_head * QUADS + i_$(I)];
        let v_high_$(I) = v[kv_head * QUADS + HALF + i_$(I)];
        k_squares += select(0.0, sum4(k_low_$(I) * k_low_$(I)) + sum4(k_high_$(I) * k_high_$(I)), own_$(I));
        v_squares += select(0.0, sum4(v_low_$(I) * v_low_$(I)) + sum4(v_high_$(I) * v_high_$(I)), own_$(I));
#endfor
        let k_root = sqrt(subgroupAdd(k_squares) / $(HD).0 + params.eps.y);
#if V_NORM
        let v_root = sqrt(subgroupAdd(v_squares) / $(HD).0 + params.eps.z);
#else
        let v_root = 1.0;
#endif
        let row = row_in_page(place.page, kv_head, params.kv_heads, u32(position)) * QUADS;
        let writes = head % per_kv == 0u;
        var score = 0.0;
#for I 0 J
        let low_$(I)_k = k_low_$(I) / k_root * (params.offset.y + k_weight[i_$(I)]);
        let high_$(I)_k = k_high_$(I) / k_root * (params.offset.y + k_weight[HALF + i_$(I)]);
        // What attention meets is what the cache keeps.
        let stored_low_$(I) = narrow(low_$(I)_k * cosine_$(I) - high_$(I)_k * sine_$(I));
        let stored_high_$(I) = narrow(high_$(I)_k * cosine_$(I) + low_$(I)_k * sine_$(I));
        let kept_low_$(I) = narrow(v_low_$(I) / v_root);
        let kept_high_$(I) = narrow(v_high_$(I) / v_root);
        score += dot(q_low_$(I), widen(stored_low_$(I))) + dot(q_high_$(I), widen(stored_high_$(I)));
        low_$(I) = widen(kept_low_$(I));
        high_$(I) = widen(kept_high_$(I));
        if writes && own_$(I) {
            keys[row + i_$(I)] = stored_low_$(I);
            keys[row + HALF + i_$(I)] = stored_high_$(I);
            values[row + i_$(I)] = kept_low_$(I);
            values[row + HALF + i_$(I)] = kept_high_$(I);
        }
#endfor
        most = subgroupAdd(score);
        total = 1.0;
    }
#endif
    let count = seen.y - seen.x + 1;
    for (var n = i32(part); n < count; n += $(UN*WG/SG)) {
#for U 0 UN
        // What is beyond the last key is that key again.
        let key_$(U) = min(seen.x + n + $(U*WG/SG), seen.y);
        let at_$(U) = row_in_page(page_$(U), kv_head, params.kv_heads, u32(key_$(U))) * QUADS;
        page_$(U) = page_of(place.table, seen, n + $((U+UN)*WG/SG));
#for I 0 J
        let key_low_$(U)_$(I) = keys[at_$(U) + i_$(I)];
        let key_high_$(U)_$(I) = keys[at_$(U) + HALF + i_$(I)];
        let value_low_$(U)_$(I) = values[at_$(U) + i_$(I)];
        let value_high_$(U)_$(I) = values[at_$(U) + HALF + i_$(I)];
#endfor
#endfor
        var now = most;
#for U 0 UN
        var score_$(U) = 0.0;
#for I 0 J
        score_$(U) += dot(q_low_$(I), widen(key_low_$(U)_$(I))) + dot(q_high_$(I), widen(key_high_$(U)_$(I)));
#endfor
        score_$(U) = subgroupAdd(score_$(U));
#if WRITES
        let is_key_$(U) = n + $(U*WG/SG) < count && key_$(U) != position;
#else
        let is_key_$(U) = n + $(U*WG/SG) < count;
#endif
        score_$(U) = select(LOW, score_$(U), is_key_$(U));
        now = max(now, score_$(U));
#endfor
        let shrink = exp(most - now);
        most = now;
        total *= shrink;
#for I 0 J
        low_$(I) *= shrink;
        high_$(I) *= shrink;
#endfor
#for U 0 UN
        if is_key_$(U) {
            let weight = exp(score_$(U) - now);
            total += weight;
#for I 0 J
            low_$(I) += weight * widen(value_low_$(U)_$(I));
            high_$(I) += weight * widen(value_high_$(U)_$(I));
#endfor
        }
#endfor
    }
    if lane == 0u {
        found[part] = vec2<f32>(most, total);
    }
    workgroupBarrier();
    // Each subgroup looks at what all have found, one of them for each invocation.
    let other = found[min(lane, N_PARTS - 1u)];
    let top = subgroupMax(select(LOW, other.x, lane < N_PARTS));
    let all = subgroupAdd(select(0.0, exp(other.x - top) * other.y, lane < N_PARTS));
    let factor = select(exp(most - top) / all, 0.0, all == 0.0);
#for I 0 J
    if own_$(I) {
        sums[part * QUADS + i_$(I)] = low_$(I) * factor;
        sums[part * QUADS + HALF + i_$(I)] = high_$(I) * factor;
    }
#endfor
    workgroupBarrier();
    for (var i = thread; i < QUADS; i += WG) {
        var made = sums[i];
#for P 1 WG/SG
        made += sums[$(P)u * QUADS + i];
#endfor
        y[head * QUADS + i] = made;
#if BYTES
        keep_bytes(0u, head * QUADS + i, made);
#endif
    }
}
