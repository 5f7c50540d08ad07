// linear: y[t, n] = Σ_k W[n, k] · x[t, k] (+ bias[n]), any encoding, in f32.
// x [len, cols]; y [len, channels]; W rows `first ..` of the matrix. The path that needs nothing.
// A workgroup makes one column of up to TILE rows of y; its invocations share the sum.
const WG: u32 = 64u;
const TILE: u32 = 8u;
#include weight
struct Params {
    weight: Weight,
    len: u32,
    /// Rows of this part of the matrix.
    rows: u32,
    /// Its first row in the whole.
    first: u32,
    channels: u32,
}
#include prelude

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> matrix: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
#if BIAS
@group(0) @binding(5) var<storage, read> bias: array<f32>;
#endif

var<workgroup> sums: array<f32, 512>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = flat_group(group, groups);
    let n = at % params.rows;
    let t0 = at / params.rows * TILE;
    let len = len_of(params.len);
    if t0 >= len {
        return;
    }
    let cols = params.weight.cols;
    let here = min(TILE, len - t0);
    var acc: array<f32, TILE>;
    for (var k = lane; k < cols; k += WG) {
        let w = weight_at(params.weight, n, k);
        for (var t = 0u; t < here; t++) {
            acc[t] += w * x[(t0 + t) * cols + k];
        }
    }
    for (var t = 0u; t < TILE; t++) {
        sums[t * WG + lane] = acc[t];
    }
    workgroupBarrier();
    if lane >= here {
        return;
    }
    var sum = 0.0;
    for (var i = 0u; i < WG; i++) {
        sum += sums[lane * WG + i];
    }
    let column = params.first + n;
#if BIAS
    sum += bias[column];
#endif
    y[(t0 + lane) * params.channels + column] = sum;
}
