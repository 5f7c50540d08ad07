// gather_rows: y [len, channels] = rows of x by number.
struct Params {
    len: u32,
    channels: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> rows: array<i32>;
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
    let row = u32(rows[i / params.channels]);
    y[i] = x[row * params.channels + i % params.channels];
}
