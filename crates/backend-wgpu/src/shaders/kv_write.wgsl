// kv_write: each token's key and value go to its page.
// k, v [len, kv_heads·head_dim]; one invocation per quad of channels.
struct Params {
    len: u32,
    kv_heads: u32,
    head_dim: u32,
}
#include prelude
#include elements
#include kv_cache
#include kv_pages

@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> places: array<Place>;
@group(0) @binding(5) var<storage, read_write> keys: array<Stored>;
@group(0) @binding(6) var<storage, read_write> values: array<Stored>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let quads = (params.head_dim + 3u) / 4u;
    let i = element(group, groups, lane);
    if i >= len_of(params.len) * params.kv_heads * quads {
        return;
    }
    let quad = i % quads;
    let head = i / quads % params.kv_heads;
    let t = i / quads / params.kv_heads;
    let at = (t * params.kv_heads + head) * params.head_dim + 4u * quad;
    var key = vec4<f32>();
    var value = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
        if 4u * quad + c < params.head_dim {
            key[c] = k[at + c];
            value[c] = v[at + c];
        }
    }
    let row = row_in_page(places[t].page, head, params.kv_heads, u32(places[t].position));
    keys[row * quads + quad] = narrow(key);
    values[row * quads + quad] = narrow(value);
}
