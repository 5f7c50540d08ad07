// attention: makes one of the parts of each query that attention_few has found; y [len, heads·HD].
// With BYTES, also in bytes. One workgroup for each row and head.
const WG: u32 = 128u;
struct Params {
    len: u32,
    heads: u32,
    /// 0 for all keys.
    window: u32,
    own_key: u32,
    splits: u32,
}
#include prelude
#include kv_pages

@group(0) @binding(2) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read> places: array<Place>;
#if HD%4 == 0
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>;
#else
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
#endif
#if BYTES
@group(0) @binding(6) var<storage, read_write> bytes: array<u32>;
@group(0) @binding(7) var<storage, read_write> bytes_scales: array<vec4<f32>>;
#include linear/byte_parts
#include linear/keep_bytes
#endif
#include attention_keys

const QUADS = $((HD+3)/4)u;
var<workgroup> found: array<vec2<f32>, 32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat_group(group, groups);
    let t = row / params.heads;
    if t >= len_of(params.len) {
        return;
    }
    let seen = seen_keys(places[t]);
    let share = max(1, share_of(seen));
    // Only those that had keys have written.
    let n = u32((n_keys(seen) + share - 1) / share);
    if lane < n {
        found[lane] = stats[row * params.splits + lane];
    }
    workgroupBarrier();
    var most = -3.0e38;
    for (var s = 0u; s < n; s++) {
        most = max(most, found[s].x);
    }
    for (var i = lane; i < QUADS; i += WG) {
        var sum = vec4<f32>();
        var total = 0.0;
        for (var s = 0u; s < n; s++) {
            let weight = exp(found[s].x - most);
            sum += weight * parts[(row * params.splits + s) * QUADS + i];
            total += weight * found[s].y;
        }
        let made = select(sum / total, vec4<f32>(), total == 0.0);
#if HD%4 == 0
        y[row * QUADS + i] = made;
#if BYTES
        keep_bytes(t, row % params.heads * QUADS + i, made);
#endif
#else
        for (var c = 0u; c < 4u; c++) {
            if 4u * i + c < $(HD)u {
                y[row * $(HD)u + 4u * i + c] = made[c];
            }
        }
#endif
    }
}
