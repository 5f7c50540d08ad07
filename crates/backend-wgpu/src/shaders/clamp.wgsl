// clamp: y = min(max(x, low), high); what is not a number stays so.
struct Params {
    len: u32,
    channels: u32,
}
#include prelude
#include elements
#include functions

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> low: array<f32>;
@group(0) @binding(4) var<storage, read> high: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

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
    let above = select(x[i], low[0], x[i] < low[0]);
    y[i] = select(select(above, high[0], above > high[0]), x[i], is_nan(x[i]));
}
