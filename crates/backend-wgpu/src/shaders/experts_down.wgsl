// experts: y[t, c] = Σ_j shares[t, j] · (down_j[c] · hidden[t, j]), over the experts of one part of
// the matrix; parts but the first add to what is there (MORE).
// hidden [len, top_k·inner]; the matrix holds experts `first ..` of [E, channels, inner].
const WG: u32 = 64u;
#include weight
struct Params {
    weight: Weight,
    len: u32,
    top_k: u32,
    channels: u32,
    first: u32,
    /// Experts in this part of the matrix.
    n: u32,
}
#include prelude
#include workgroup_sum

@group(0) @binding(2) var<storage, read> hidden: array<f32>;
@group(0) @binding(3) var<storage, read> chosen: array<u32>;
@group(0) @binding(4) var<storage, read> shares: array<f32>;
@group(0) @binding(5) var<storage, read> matrix: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = flat_group(group, groups);
    let t = at / params.channels;
    if t >= len_of(params.len) {
        return;
    }
    let inner = params.weight.cols;
    var sum = 0.0;
    for (var j = 0u; j < params.top_k; j++) {
        let use_at = t * params.top_k + j;
        let expert = chosen[use_at] - params.first;
        if expert >= params.n {
            continue;
        }
        let row = expert * params.channels + at % params.channels;
        var made = 0.0;
        for (var k = lane; k < inner; k += WG) {
            made += weight_at(params.weight, row, k) * hidden[use_at * inner + k];
        }
        sum += shares[use_at] * made;
    }
    sum = workgroup_sum(lane, sum);
    if lane == 0u {
#if MORE
        y[at] += sum;
#else
        y[at] = sum;
#endif
    }
}
