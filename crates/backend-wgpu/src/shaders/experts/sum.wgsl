// experts: y[t, c] = Σ_j shares[t, j] · made[t·k + j, c], what each chosen expert made.
struct Params {
    len: u32,
    channels: u32,
    top_k: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> made: array<f32>;
@group(0) @binding(3) var<storage, read> shares: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = element(group, groups, lane);
    if i >= len_of(params.len) * params.channels {
        return;
    }
    let first = i / params.channels * params.top_k;
    var sum = 0.0;
    for (var j = 0u; j < params.top_k; j++) {
        sum += shares[first + j] * made[(first + j) * params.channels + i % params.channels];
    }
    y[i] = sum;
}
