// gelu_gate: y = gelu_tanh(gate) · up; up may be channels start .. of something wider.
struct Params {
    len: u32,
    channels: u32,
    up_channels: u32,
    start: u32,
}
#include prelude
#include elements
#include functions

@group(0) @binding(2) var<storage, read> gate: array<f32>;
@group(0) @binding(3) var<storage, read> up: array<f32>;
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
    let row = i / params.channels;
    let at = row * params.up_channels + params.start + i % params.channels;
    y[i] = gelu_tanh(gate[i]) * up[at];
}
