// slice: y [len, channels] = channels start .. of x [len, x_channels].
struct Params {
    len: u32,
    channels: u32,
    x_channels: u32,
    start: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

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
    y[i] = x[row * params.x_channels + params.start + i % params.channels];
}
