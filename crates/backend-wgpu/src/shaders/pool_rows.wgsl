// pool_rows: y [len, channels] = the mean of each run of size rows of x.
struct Params {
    len: u32,
    channels: u32,
    size: u32,
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
    let row = i / params.channels * params.size;
    var sum = 0.0;
    for (var r = 0u; r < params.size; r++) {
        sum += x[(row + r) * params.channels + i % params.channels];
    }
    y[i] = sum / f32(params.size);
}
