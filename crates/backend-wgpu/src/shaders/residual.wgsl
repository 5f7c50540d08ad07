// y = (x + norm(a)) · s, and z = norm(y), over rows of CHANNELS; each part by a switch:
// PRE (PRE_WEIGHT) the norm of a, SCALE the factor s [width] (SCALAR: one number), POST (POST_WEIGHT)
// z, BYTES z in bytes.
// One workgroup per row, N vectors of V channels for each invocation: all are asked for before the
// first is needed. The arithmetic is that of rms_norm, add and scale_by, but that
// roots are divided by once.
struct Params {
    len: u32,
    pre_eps: f32,
    pre_offset: f32,
    post_eps: f32,
    post_offset: f32,
    width: u32,
}
#include prelude
#include vectors
#include workgroup_sum

@group(0) @binding(2) var<storage, read> x: array<Vector>;
@group(0) @binding(3) var<storage, read> a: array<Vector>;
@group(0) @binding(4) var<storage, read_write> y: array<Vector>;
#if PRE_WEIGHT
@group(0) @binding(5) var<storage, read> pre_weight: array<Vector>;
#endif
#if SCALE
@group(0) @binding(6) var<storage, read> factor: array<f32>;
#endif
#if POST_WEIGHT
@group(0) @binding(7) var<storage, read> post_weight: array<Vector>;
#endif
#if POST
@group(0) @binding(8) var<storage, read_write> z: array<Vector>;
#endif
#if BYTES
@group(0) @binding(9) var<storage, read_write> bytes: array<u32>;
@group(0) @binding(10) var<storage, read_write> bytes_scales: array<vec4<f32>>;
#include linear/byte_parts
#include linear/keep_bytes
#endif

// Vectors of a row.
const ROW = $(CHANNELS/V)u;

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
    let start = row * ROW;
#for I 0 N
    // Beyond the end, the last is read again and nothing is done with it.
    let i_$(I) = min(lane + $(I*WG)u, ROW - 1u);
    let in_$(I) = lane + $(I*WG)u < ROW;
    let x_$(I) = x[start + i_$(I)];
    var a_$(I) = a[start + i_$(I)];
#if PRE_WEIGHT
    let pre_$(I) = params.pre_offset + pre_weight[i_$(I)];
#endif
#if SCALE
#if SCALAR
    let s_$(I) = factor[0];
#else
#if V == 4
    let at_$(I) = vec4<u32>(4u * i_$(I)) + vec4<u32>(0u, 1u, 2u, 3u);
    let s_$(I) = vec4<f32>(
        factor[at_$(I).x % params.width],
        factor[at_$(I).y % params.width],
        factor[at_$(I).z % params.width],
        factor[at_$(I).w % params.width],
    );
#else
    let s_$(I) = factor[i_$(I) % params.width];
#endif
#endif
#endif
#if POST_WEIGHT
    let post_$(I) = params.post_offset + post_weight[i_$(I)];
#endif
#endfor
#if PRE
    var squares = 0.0;
#for I 0 N
    squares += select(0.0, sum_of(a_$(I) * a_$(I)), in_$(I));
#endfor
    let inverse = 1.0 / sqrt(workgroup_sum(lane, squares) / $(CHANNELS).0 + params.pre_eps);
#endif
    var made_squares = 0.0;
#for I 0 N
#if PRE
    a_$(I) *= inverse;
#endif
#if PRE_WEIGHT
    a_$(I) *= pre_$(I);
#endif
    var made_$(I) = x_$(I) + a_$(I);
#if SCALE
    made_$(I) *= s_$(I);
#endif
    if in_$(I) {
        y[start + i_$(I)] = made_$(I);
        made_squares += sum_of(made_$(I) * made_$(I));
    }
#endfor
#if POST
    let made_inverse = 1.0 / sqrt(workgroup_sum(lane, made_squares) / $(CHANNELS).0 + params.post_eps);
#for I 0 N
    made_$(I) *= made_inverse;
#if POST_WEIGHT
    made_$(I) *= post_$(I);
#endif
    if in_$(I) {
        z[start + i_$(I)] = made_$(I);
#if BYTES
        keep_bytes(row, i_$(I), made_$(I));
#endif
    }
#endfor
#endif
}
