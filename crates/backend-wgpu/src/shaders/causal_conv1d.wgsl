// causal_conv1d: y[t] = Σ_k w[k] · x[t − taps + 1 + k] by channel; w [taps, channels].
struct Params {
    len: u32,
    channels: u32,
    taps: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
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
    let t = i / params.channels;
    let c = i % params.channels;
    var sum = 0.0;
    for (var k = 0u; k < params.taps; k++) {
        if t + k + 1u >= params.taps {
            let row = t + k + 1u - params.taps;
            sum += weight[k * params.channels + c] * x[row * params.channels + c];
        }
    }
    y[i] = sum;
}
