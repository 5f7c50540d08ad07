// layer_norm: each run of `width` channels becomes (x − mean) / sqrt(variance + eps) · w + b.
// x, y [len, runs·width]; weight [width]; bias [width] with BIAS. One workgroup per run.
const WG: u32 = 256u;
struct Params {
    len: u32,
    runs: u32,
    width: u32,
    eps: f32,
}
#include prelude
#include workgroup_sum

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let run = flat_group(group, groups);
    if run >= len_of(params.len) * params.runs {
        return;
    }
    let start = run * params.width;
    let width = f32(params.width);
    // Around the first number: patches of pixels have a mean far from 0.
    let near = x[start];
    var sum = 0.0;
    for (var i = lane; i < params.width; i += WG) {
        sum += x[start + i] - near;
    }
    let mean = near + workgroup_sum(lane, sum) / width;
    var squares = 0.0;
    for (var i = lane; i < params.width; i += WG) {
        let d = x[start + i] - mean;
        squares += d * d;
    }
    let root = sqrt(workgroup_sum(lane, squares) / width + params.eps);
    for (var i = lane; i < params.width; i += WG) {
        var normed = (x[start + i] - mean) / root * weight[i];
#if BIAS
        normed += bias[i];
#endif
        y[start + i] = normed;
    }
}
