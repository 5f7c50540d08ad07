// Draws a token from the candidates of each row, best first, as pairs of order and number: the rule of
// `backend-kit`'s draw, in f32. Temperature 0 takes the first; else top-k, top-p and min-p cut, and the
// greatest of logit / temperature − ln E wins, E exponential by Philox4x32-10 of seed, position and
// number. One workgroup for each row, one invocation for each candidate.
const WG: u32 = 128u;
struct Params {
    pad: u32,
}
#include prelude

struct Rule {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    key: vec2<u32>,
    position: u32,
    /// How many candidates there are.
    candidates: u32,
}

@group(0) @binding(2) var<storage, read> best: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read_write> drawn: array<u32>;
@group(0) @binding(4) var<storage, read> rules: array<Rule>;

const NONE: u32 = 0xffffffffu;
const LOW: f32 = -3.0e38;
var<workgroup> sums: array<f32, WG>;
var<workgroup> scores: array<f32, WG>;
var<workgroup> ids: array<u32, WG>;

/// The high half of a product.
fn high_half(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let middle = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let other = (a & 0xffffu) * (b >> 16u) + (middle & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (middle >> 16u) + (other >> 16u);
}

/// The random word of a number.
fn word_of(id: u32, rule: Rule) -> u32 {
    var c = vec4<u32>(id / 4u, rule.position, 0u, 0u);
    var key = rule.key;
    for (var i = 0u; i < 10u; i++) {
        let a = vec2<u32>(high_half(c.x, 0xd2511f53u), c.x * 0xd2511f53u);
        let b = vec2<u32>(high_half(c.z, 0xcd9e8d57u), c.z * 0xcd9e8d57u);
        c = vec4<u32>(b.x ^ c.y ^ key.x, b.y, a.x ^ c.w ^ key.y, a.y);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return c[id % 4u];
}

/// −ln(1 − v) for v = (x + ½)·2⁻³²: a series where a logarithm near 1 would lose digits.
fn exponential(x: u32) -> f32 {
    if x >= 0x60000000u {
        return -log((f32(~x) + 0.5) * 2.3283064e-10);
    }
    let v = (f32(x) + 0.5) * 2.3283064e-10;
    let s = v / (2.0 - v);
    let z = s * s;
    var p = 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    return 2.0 * (s + s * z * p);
}

/// A number from its order.
fn value_of(order: u32) -> f32 {
    return bitcast<f32>(select(~order, order & 0x7fffffffu, order >= 0x80000000u));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.y;
    let rule = rules[row];
    let own = best[row * K + min(lane, K - 1u)];
    // What is not finite comes first and is no candidate; what has order 0 is none at all.
    let is_one = lane < min(K, rule.candidates) && own.x != 0u && own.x != 0xffffffffu;
    ids[lane] = select(NONE, own.y, is_one);
    scores[lane] = select(LOW, value_of(own.x), is_one);
    workgroupBarrier();
    var first = 0u;
    for (var i = 0u; i < K; i++) {
        if ids[i] != NONE {
            break;
        }
        first = i + 1u;
    }
    // A row without candidates draws 0, as a token that nobody will believe.
    let is_greedy = rule.temperature == 0.0 || rule.top_k == 1u || first >= K;
    let top = scores[min(first, K - 1u)];
    let top_id = select(ids[min(first, K - 1u)], 0u, first >= K);
    let inverse = 1.0 / select(rule.temperature, 1.0, is_greedy);
    let logit = (value_of(own.x) - top) * inverse;
    var is_kept = is_one && (rule.top_k == 0u || lane - first < rule.top_k);
    let weight = select(0.0, exp(logit), is_kept);
    workgroupBarrier();
    // The weights of all before and with each.
    var sum = weight;
    sums[lane] = sum;
    for (var apart = 1u; apart < WG; apart <<= 1u) {
        workgroupBarrier();
        let before = select(0.0, sums[max(lane, apart) - apart], lane >= apart);
        workgroupBarrier();
        sum += before;
        sums[lane] = sum;
    }
    workgroupBarrier();
    if rule.top_p < 1.0 {
        is_kept = is_kept && (lane == first || sum - weight < rule.top_p * sums[WG - 1u]);
    }
    if rule.min_p > 0.0 {
        is_kept = is_kept && logit >= log(rule.min_p);
    }
    var score = LOW;
    if is_kept && !is_greedy {
        score = logit - log(exponential(word_of(own.y, rule)));
    }
    workgroupBarrier();
    scores[lane] = score;
    ids[lane] = select(NONE, own.y, is_kept);
    for (var half = WG / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            let other = scores[lane + half];
            let other_id = ids[lane + half];
            if other > score || (other == score && other_id < ids[lane]) {
                score = other;
                scores[lane] = other;
                ids[lane] = other_id;
            }
        }
    }
    if lane == 0u {
        drawn[row] = select(ids[0], top_id, is_greedy);
    }
}
