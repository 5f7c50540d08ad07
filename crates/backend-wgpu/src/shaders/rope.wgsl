// rope: pairs i and i + head_dim/2 turn by table [len, cosines · sines]; the rest passes.
struct Params {
    len: u32,
    channels: u32,
    head_dim: u32,
    pairs: u32,
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
    let pair = d % half;
    if pair >= params.pairs {
        y[i] = x[i];
        return;
    }
    let angle = i / params.channels * 2u * params.pairs + pair;
    let cosine = table[angle];
    let sine = table[angle + params.pairs];
    if d < half {
        y[i] = x[i] * cosine - x[i + half] * sine;
    } else {
        y[i] = x[i] * cosine + x[i - half] * sine;
    }
}
