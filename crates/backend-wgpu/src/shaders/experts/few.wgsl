// experts for few tokens, the weights packed (`linear/form.rs`). A workgroup of NT invocations makes a
// tile of eight rows; an invocation takes one row of it and every NT/8-th unit.
// GATE: hidden[t·k + j, i] = gelu_tanh(gate·x) · (up·x) for the j-th expert of token t, the gate's rows
// first. Else: y[t, c] = Σ_j shares[t, j] · (down_j[c] · hidden[t, j]), where the units of all experts
// of a token are one long row; parts of the matrix but the first add to what is there (MORE).
// SG: size of a subgroup if it is known and may be used.
struct Params {
    len: u32,
    units: u32,
    /// Tiles of one expert.
    tiles: u32,
    steps: u32,
    ups: u32,
    cols: u32,
    top_k: u32,
    /// Experts in this part of the matrix: the first, and how many.
    first: u32,
    n: u32,
}
#include prelude
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> rows: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> chosen: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
#if SCALE
@group(0) @binding(7) var<storage, read> scales: Scales;
#endif
#if !GATE
@group(0) @binding($(7+(SCALE>0))) var<storage, read> shares: array<f32>;
#endif
#include linear/factors
#include linear/unit_dot
#if GATE
#include functions
#endif

const SLOTS = $(NT/8)u;
#if SG
const PARTS = $(NT/SG)u;
#else
const PARTS = SLOTS;
#endif
var<workgroup> partial: array<f32, $((1+GATE)*8)*PARTS>;

@compute @workgroup_size($(NT))
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let r = thread % 8u;
    let slot = thread / 8u;
    let at = flat_group(group, groups);
#if GATE
    let half_tiles = params.tiles / 2u;
    let use_at = at / half_tiles;
    if use_at >= len_of(params.len) * params.top_k {
        return;
    }
    // Below the first, this wraps to a large number.
    let expert = chosen[use_at] - params.first;
    if expert >= params.n {
        return;
    }
    let tile = expert * params.tiles + at % half_tiles;
    let x_first = use_at / params.top_k * (params.cols / 4u);
    var sum_0 = 0.0;
    var sum_1 = 0.0;
    for (var u = slot; u < params.units; u += SLOTS) {
        sum_0 += unit_dot(tile, u, r, x_first + u * 8u, params.cols);
        sum_1 += unit_dot(tile + half_tiles, u, r, x_first + u * 8u, params.cols);
    }
#else
    let token = at / params.tiles;
    if token >= len_of(params.len) {
        return;
    }
    let own_tile = at % params.tiles;
    var sum_0 = 0.0;
    for (var all = slot; all < params.top_k * params.units; all += SLOTS) {
        let use_at = token * params.top_k + all / params.units;
        let expert = chosen[use_at] - params.first;
        if expert < params.n {
            let u = all % params.units;
            let tile = expert * params.tiles + own_tile;
            var share = shares[use_at];
#if SCALE
            share *= rows[tile * 8u + r];
#endif
            sum_0 += share * unit_dot(tile, u, r, use_at * (params.cols / 4u) + u * 8u, params.cols);
        }
    }
#endif
#for I 0 1+GATE
    {
        var v = sum_$(I);
#if SG
#if SG > 8
        v += subgroupShuffleXor(v, 8u);
#endif
#if SG > 16
        v += subgroupShuffleXor(v, 16u);
#endif
#if SG > 32
        v += subgroupShuffleXor(v, 32u);
#endif
        if (thread % $(SG)u) < 8u {
            partial[($(I)u * PARTS + thread / $(SG)u) * 8u + r] = v;
        }
#else
        partial[($(I)u * PARTS + slot) * 8u + r] = v;
#endif
    }
#endfor
    workgroupBarrier();
    if thread < 8u {
#for I 0 1+GATE
        var found_$(I) = 0.0;
        for (var p = 0u; p < PARTS; p++) {
            found_$(I) += partial[($(I)u * PARTS + p) * 8u + thread];
        }
#endfor
#if GATE
#if SCALE
        found_0 *= rows[tile * 8u + thread];
        found_1 *= rows[(tile + half_tiles) * 8u + thread];
#endif
        y[at * 8u + thread] = gelu_tanh(found_0) * found_1;
#else
#if MORE
        y[at * 8u + thread] += found_0;
#else
        y[at * 8u + thread] = found_0;
#endif
#endif
    }
}
