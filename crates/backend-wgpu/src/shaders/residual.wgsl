// y = (x + norm(a)) · s, and z = norm(y), over rows of `channels`; each part by a switch:
// PRE (PRE_WEIGHT) the norm of a, SCALE the factor s [width], POST (POST_WEIGHT) z.
// One workgroup per row. The arithmetic is that of rms_norm, add and scale_by.
const WG: u32 = 256u;
struct Params {
    len: u32,
    channels: u32,
    pre_eps: f32,
    pre_offset: f32,
    post_eps: f32,
    post_offset: f32,
    width: u32,
}
#include prelude
#include workgroup_sum

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> a: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
#if PRE_WEIGHT
@group(0) @binding(5) var<storage, read> pre_weight: array<f32>;
#endif
#if SCALE
@group(0) @binding(6) var<storage, read> factor: array<f32>;
#endif
#if POST_WEIGHT
@group(0) @binding(7) var<storage, read> post_weight: array<f32>;
#endif
#if POST
@group(0) @binding(8) var<storage, read_write> z: array<f32>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat_group(group, groups);
    if row >= len_of(params.len) {
        return;
    }
    let start = row * params.channels;
    let width = f32(params.channels);
#if PRE
    var squares = 0.0;
    for (var i = lane; i < params.channels; i += WG) {
        squares += a[start + i] * a[start + i];
    }
    let root = sqrt(workgroup_sum(lane, squares) / width + params.pre_eps);
#endif
    var made_squares = 0.0;
    for (var i = lane; i < params.channels; i += WG) {
        var added = a[start + i];
#if PRE
        added /= root;
#endif
#if PRE_WEIGHT
        added *= params.pre_offset + pre_weight[i];
#endif
        var made = x[start + i] + added;
#if SCALE
        made *= factor[i % params.width];
#endif
        y[start + i] = made;
        made_squares += made * made;
    }
#if POST
    let made_root = sqrt(workgroup_sum(lane, made_squares) / width + params.post_eps);
    for (var i = lane; i < params.channels; i += WG) {
        var normed = y[start + i] / made_root;
#if POST_WEIGHT
        normed *= params.post_offset + post_weight[i];
#endif
        z[start + i] = normed;
    }
#endif
}
