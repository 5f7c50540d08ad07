// experts: hidden[t·k + j, i] = gelu_tanh(gate·x) · (up·x) for the j-th expert of token t.
// x [len, cols]; chosen [len, top_k]; hidden [len, top_k·inner]; the matrix holds experts
// `first ..` of [E, 2·inner, cols], gate rows first. A workgroup makes one number.
const WG: u32 = 64u;
#include weight
struct Params {
    weight: Weight,
    len: u32,
    top_k: u32,
    inner: u32,
    first: u32,
    /// Experts in this part of the matrix.
    n: u32,
}
#include prelude
#include functions
#include workgroup_sum

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> chosen: array<u32>;
@group(0) @binding(4) var<storage, read> matrix: array<u32>;
@group(0) @binding(5) var<storage, read_write> hidden: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = flat_group(group, groups);
    let use_at = at / params.inner;
    if use_at >= len_of(params.len) * params.top_k {
        return;
    }
    // Below the first, this wraps to a large number.
    let expert = chosen[use_at] - params.first;
    if expert >= params.n {
        return;
    }
    let cols = params.weight.cols;
    let gate_row = expert * 2u * params.inner + at % params.inner;
    let token = use_at / params.top_k;
    var gate = 0.0;
    var up = 0.0;
    for (var k = lane; k < cols; k += WG) {
        let own = x[token * cols + k];
        gate += weight_at(params.weight, gate_row, k) * own;
        up += weight_at(params.weight, gate_row + params.inner, k) * own;
    }
    gate = workgroup_sum(lane, gate);
    up = workgroup_sum(lane, up);
    if lane == 0u {
        hidden[at] = gelu_tanh(gate) * up;
    }
}
