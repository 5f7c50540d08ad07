// activate: y = f(x), f by a switch.
struct Params {
    len: u32,
    channels: u32,
}
#include prelude
#include elements
#include functions

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
#if GELU
    y[i] = gelu_tanh(x[i]);
#endif
#if SILU
    y[i] = x[i] * sigmoid(x[i]);
#endif
#if RELU
    y[i] = select(max(x[i], 0.0), x[i], is_nan(x[i]));
#endif
}
