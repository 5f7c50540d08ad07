// centroid_head: found[r, j] = embedding[token] · x[r] for the tokens under the chosen centroids.
// x [len, cols]; chosen [len, top]; ordering [vocab]; found [len, top·per]; the matrix holds rows
// `first ..` of the embedding. A workgroup makes one number.
const WG: u32 = 64u;
#include weight
struct Params {
    weight: Weight,
    len: u32,
    top: u32,
    /// Tokens of one centroid.
    per: u32,
    first: u32,
    rows: u32,
}
#include prelude
#include workgroup_sum

@group(0) @binding(2) var<storage, read> x: array<f32>;
@group(0) @binding(3) var<storage, read> chosen: array<u32>;
@group(0) @binding(4) var<storage, read> ordering: array<u32>;
@group(0) @binding(5) var<storage, read> matrix: array<u32>;
@group(0) @binding(6) var<storage, read_write> found: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = flat_group(group, groups);
    let wide = params.top * params.per;
    let r = at / wide;
    if r >= len_of(params.len) {
        return;
    }
    let j = at % wide;
    let centroid = chosen[r * params.top + j / params.per];
    // Below the first, this wraps to a large number.
    let row = ordering[centroid * params.per + j % params.per] - params.first;
    if row >= params.rows {
        return;
    }
    let cols = params.weight.cols;
    var sum = 0.0;
    for (var k = lane; k < cols; k += WG) {
        sum += weight_at(params.weight, row, k) * x[r * cols + k];
    }
    sum = workgroup_sum(lane, sum);
    if lane == 0u {
        found[at] = sum;
    }
}
