// axial_rope: each half of a head turns by itself; table [len, cosines · sines], columns then rows.
struct Params {
    len: u32,
    channels: u32,
    head_dim: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> table: array<f32>;
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
    let d = i % params.head_dim;
    let half = params.head_dim / 2u;
    let pairs = half / 2u;
    let within = d % half;
    let angle = i / params.channels * params.head_dim + d / half * pairs + within % pairs;
    let cosine = table[angle];
    let sine = table[angle + half];
    if within < pairs {
        y[i] = x[i] * cosine - x[i + pairs] * sine;
    } else {
        y[i] = x[i] * cosine + x[i - pairs] * sine;
    }
}
