// attention for few rows of queries: `splits` workgroups share the keys of a query, each a stretch of
// them, and attention_few_join makes one of their parts. GT heads that share a KV head go together.
// q [len, heads·HD]; parts [rows, heads, splits, quads], not divided yet; stats [rows, heads,
// splits]: the largest score, and the sum of the weights.
// A tile is 32 keys: eight invocations make a key's scores; then each key and head has one that makes
// its weight; then quads of channels are summed up, by parts of the workgroup that take every n-th key.
// SG: the size of a subgroup, if it is known and may be used.
const WG: u32 = 256u;
struct Params {
    len: u32,
    heads: u32,
    kv_heads: u32,
    splits: u32,
    scale: f32,
    /// 0 for all keys.
    window: u32,
    /// Whether a query sees the key at its own position.
    own_key: u32,
}
#include prelude
#include kv_cache
#include kv_pages

#if HD%4 == 0
@group(0) @binding(2) var<storage, read> q: array<vec4<f32>>;
#else
@group(0) @binding(2) var<storage, read> q: array<f32>;
#endif
@group(0) @binding(3) var<storage, read> places: array<Place>;
@group(0) @binding(4) var<storage, read> pages: array<u32>;
@group(0) @binding(5) var<storage, read> keys: array<Stored>;
@group(0) @binding(6) var<storage, read> values: array<Stored>;
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read_write> stats: array<vec2<f32>>;
#include attention_keys

const QUADS = $((HD+3)/4)u;
const LOW: f32 = -3.0e38;
// Quads of values that are summed at once; TURNS parts of the workgroup take turns with the keys.
const SPAN = QUADS;
// A row of partial scores; chosen so that neither writing nor reading them meets in a bank.
const STRIDE = 36u;

var<workgroup> queries: array<vec4<f32>, $(GT)u * QUADS>;
var<workgroup> partial: array<f32, $(GT*8)u * STRIDE>;
#if SG != 32
var<workgroup> scores: array<f32, $(GT*32)u>;
#endif
var<workgroup> weights: array<f32, $(GT*32)u>;
var<workgroup> shrinks: array<f32, $(GT)u>;
var<workgroup> sums: array<vec4<f32>, $(NG*256)>;

fn query_quad(row: u32, i: u32) -> vec4<f32> {
#if HD%4 == 0
    return q[row * QUADS + i];
#else
    var quad = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
        if 4u * i + c < $(HD)u {
            quad[c] = q[row * $(HD)u + 4u * i + c];
        }
    }
    return quad;
#endif
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let per_kv = params.heads / params.kv_heads;
    let blocks = (per_kv + $(GT-1)u) / $(GT)u;
    let at = flat_group(group, groups);
    let split = at % params.splits;
    let block = at / params.splits % blocks;
    let kv_head = at / params.splits / blocks % params.kv_heads;
    let t = at / params.splits / blocks / params.kv_heads;
    if t >= len_of(params.len) {
        return;
    }
    let place = places[t];
    let seen = seen_keys(place);
    let share = share_of(seen);
    let first = first_tile(seen) + i32(split) * share;
    let last = min(seen.y, first + share - 1);
    if first > last || seen.x > seen.y {
        return;
    }
    // The page of a tile is looked up while the one before is worked on.
    var page = pages[place.table + (first >> PAGE_BITS)];
    let row0 = t * params.heads + kv_head * per_kv + block * $(GT)u;
    let n_queries = min($(GT)u, per_kv - block * $(GT)u);
    for (var i = lane; i < $(GT)u * QUADS; i += WG) {
        let row = row0 + min(i / QUADS, n_queries - 1u);
        queries[i] = query_quad(row, i % QUADS) * params.scale;
    }
    // Of the head and key that this invocation makes the weight of.
    let own_head = lane / 32u;
    let own_key = lane % 32u;
    var most = LOW;
    var total = 0.0;
    // Of the quad that it sums up.
    let quad_at = lane % SPAN;
    let turn = lane / SPAN;
#for G 0 GT
    var acc_$(G) = vec4<f32>();
#endfor
    for (var start = first; start <= last; start += 32) {
        // All of the tile is asked for at once; in the place of keys that are not seen stands the
        // nearest that is.
        let row = row_in_page(page, kv_head, params.kv_heads, u32(start));
        page = pages[place.table + (min(start + 32, last) >> PAGE_BITS)];
        let low = u32(max(seen.x - start, 0));
        let high = min(u32(last - start), 31u);
        let of_key = (row + clamp(lane / 8u, low, high)) * QUADS;
#for I 0 ((HD+3)/4+7)/8
        let key_$(I) = keys[of_key + min(lane % 8u + $(8*I)u, QUADS - 1u)];
#endfor
#for J 0 (32+TURNS-1)/TURNS
        let v_$(J) = clamp(min(turn, TURNS - 1u) + $(J*TURNS)u, low, high);
        let value_$(J) = values[(row + v_$(J)) * QUADS + quad_at];
#endfor
        workgroupBarrier();
        {
#for G 0 GT
            var s_$(G) = 0.0;
#endfor
#for I 0 ((HD+3)/4+7)/8
#if (I+1)*8 > (HD+3)/4
            if lane % 8u + $(8*I)u < QUADS {
#else
            {
#endif
                let i = lane % 8u + $(8*I)u;
                let quad = widen(key_$(I));
#for G 0 GT
                s_$(G) += dot(queries[$(G)u * QUADS + i], quad);
#endfor
            }
#endfor
            let to = lane % 8u * STRIDE + lane / 8u;
#for G 0 GT
            partial[$(G*8)u * STRIDE + to] = s_$(G);
#endfor
        }
        workgroupBarrier();
        var score = LOW;
        let is_seen = own_key >= low && own_key <= high;
        if own_head < $(GT)u {
            if is_seen {
                score = 0.0;
                for (var p = 0u; p < 8u; p++) {
                    score += partial[(own_head * 8u + p) * STRIDE + own_key];
                }
            }
#if SG != 32
            scores[lane] = score;
        }
        workgroupBarrier();
        if own_head < $(GT)u {
            var now = most;
            for (var i = 0u; i < 32u; i++) {
                now = max(now, scores[own_head * 32u + i]);
            }
#else
            // A subgroup has the keys of one head.
            let now = max(most, subgroupMax(score));
#endif
            let shrink = exp(most - now);
            let weight = select(0.0, exp(score - now), is_seen);
            most = now;
            total = total * shrink + weight;
            weights[own_key * $(GT)u + own_head] = weight;
            if own_key == 0u {
                shrinks[own_head] = shrink;
            }
        }
        workgroupBarrier();
#for G 0 GT
        acc_$(G) *= shrinks[$(G)];
#endfor
        // A key that is not seen weighs nothing.
        if turn < TURNS {
#for J 0 (32+TURNS-1)/TURNS
#if (J+1)*TURNS > 32
            if turn + $(J*TURNS)u < 32u {
#else
            {
#endif
                let quad = widen(value_$(J));
                let of_weights = (turn + $(J*TURNS)u) * $(GT)u;
#for G 0 GT
                acc_$(G) += weights[of_weights + $(G)u] * quad;
#endfor
            }
#endfor
        }
    }
    // What the turns have found, NG heads at a time.
#for H 0 GT/NG
    workgroupBarrier();
#for G 0 NG
    sums[lane * $(NG)u + $(G)u] = acc_$(H*NG+G);
#endfor
    workgroupBarrier();
    for (var i = lane; i < SPAN * $(NG)u; i += WG) {
        var sum = sums[i];
        for (var p = 1u; p < TURNS; p++) {
            sum += sums[i + p * SPAN * $(NG)u];
        }
        let g = $(H*NG)u + i % $(NG)u;
        if g < n_queries {
            parts[((row0 + g) * params.splits + split) * QUADS + i / $(NG)u] = sum;
        }
    }
#endfor
#if SG != 32
    if own_head < $(GT)u {
        weights[lane] = total;
    }
    workgroupBarrier();
#else
    let sum = subgroupAdd(total);
#endif
    if own_head < n_queries && own_key == 0u {
#if SG != 32
        var sum = 0.0;
        for (var i = 0u; i < 32u; i++) {
            sum += weights[lane + i];
        }
#endif
        stats[(row0 + own_head) * params.splits + split] = vec2<f32>(most, sum);
    }
}
