// conv2d: 3×3, stride 2, a border of one zero; x [x_len, width·n_in], weight [3, 3, n_in, n_out].
struct Params {
    len: u32,
    channels: u32,
    x_len: u32,
    width: u32,
    n_in: u32,
    n_out: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> weight: array<f32>;
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
    let row = i / params.channels;
    let column = i % params.channels / params.n_out;
    let o = i % params.n_out;
    let x_len = len_of(params.x_len);
    var sum = 0.0;
    for (var place = 0u; place < 9u; place++) {
        // One more than the pixel, so that the border is 0.
        let r = 2u * row + place / 3u;
        let c = 2u * column + place % 3u;
        if r == 0u || r > x_len || c == 0u || c > params.width {
            continue;
        }
        let pixel = ((r - 1u) * params.width + c - 1u) * params.n_in;
        // Sums of one place are added to the whole: less is lost than in one long sum.
        var part = 0.0;
        for (var k = 0u; k < params.n_in; k++) {
            part += weight[(place * params.n_in + k) * params.n_out + o] * x[pixel + k];
        }
        sum += part;
    }
    y[i] = sum;
}
