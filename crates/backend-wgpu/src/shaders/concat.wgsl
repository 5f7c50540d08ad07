// concat: y [len, channels] = a [len, a_channels] beside b.
struct Params {
    len: u32,
    channels: u32,
    a_channels: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> a: array<f32>;
@group(0) @binding(3) var<storage, read> b: array<f32>;
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
    let c = i % params.channels;
    let b_channels = params.channels - params.a_channels;
    if c < params.a_channels {
        y[i] = a[row * params.a_channels + c];
    } else {
        y[i] = b[row * b_channels + c - params.a_channels];
    }
}
