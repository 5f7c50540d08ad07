// rms_norm: each run of `width` channels becomes x / sqrt(mean(x²) + eps) · (offset + w).
// x, y [len, channels]; weight [width] with WEIGHT. With ROPE, pairs i and i + width/2 of a run then
// turn by table [len, cosines · sines]. One workgroup per run.
const WG: u32 = 256u;
struct Params {
    len: u32,
    runs: u32,
    width: u32,
    eps: f32,
    offset: f32,
    /// Pairs that turn.
    pairs: u32,
}
#include prelude
#include workgroup_sum

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
#if ROPE
@group(0) @binding(5) var<storage, read> table: array<f32>;
#endif
#if WEIGHT
@group(0) @binding(4) var<storage, read> weight: array<f32>;
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
    var squares = 0.0;
    for (var i = lane; i < params.width; i += WG) {
        squares += x[start + i] * x[start + i];
    }
    let mean = workgroup_sum(lane, squares) / f32(params.width);
    let root = sqrt(mean + params.eps);
#if ROPE
    let half = params.width / 2u;
    let angles = run / params.runs * 2u * params.pairs;
    for (var i = lane; i < half; i += WG) {
        let low = normed(start, i, root);
        let high = normed(start, i + half, root);
        if i < params.pairs {
            let cosine = table[angles + i];
            let sine = table[angles + params.pairs + i];
            y[start + i] = low * cosine - high * sine;
            y[start + i + half] = high * cosine + low * sine;
        } else {
            y[start + i] = low;
            y[start + i + half] = high;
        }
    }
#else
    for (var i = lane; i < params.width; i += WG) {
        y[start + i] = normed(start, i, root);
    }
#endif
}

/// An element of a run, divided and weighed.
fn normed(start: u32, i: u32, root: f32) -> f32 {
#if WEIGHT
    return x[start + i] / root * (params.offset + weight[i]);
#else
    return x[start + i] / root;
#endif
}
