// centroid_head: y [len, vocab] is found [len, top·per] at the tokens that were looked at, and the
// least of them minus 1 elsewhere. One workgroup per row.
const WG: u32 = 256u;
struct Params {
    len: u32,
    top: u32,
    per: u32,
    vocab: u32,
}
#include prelude

@group(0) @binding(2) var<storage, read> found: array<f32>;
@group(0) @binding(3) var<storage, read> chosen: array<u32>;
@group(0) @binding(4) var<storage, read> ordering: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

var<workgroup> lows: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let r = flat_group(group, groups);
    if r >= len_of(params.len) {
        return;
    }
    let wide = params.top * params.per;
    var least = 3.0e38;
    for (var j = lane; j < wide; j += WG) {
        least = min(least, found[r * wide + j]);
    }
    lows[lane] = least;
    workgroupBarrier();
    for (var i = 0u; i < WG; i++) {
        least = min(least, lows[i]);
    }
    for (var i = lane; i < params.vocab; i += WG) {
        y[r * params.vocab + i] = least - 1.0;
    }
    storageBarrier();
    for (var j = lane; j < wide; j += WG) {
        let centroid = chosen[r * params.top + j / params.per];
        let token = ordering[centroid * params.per + j % params.per];
        y[r * params.vocab + token] = found[r * wide + j];
    }
}
