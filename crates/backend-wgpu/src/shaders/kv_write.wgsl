// kv_write: each token's key and value go to its slot and position.
// k, v [len, heads·head_dim]; one invocation per quad of channels.
struct Params {
    len: u32,
    heads: u32,
    head_dim: u32,
    capacity: u32,
}
#include prelude
#include elements
#include kv_cache

@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read> slots: array<i32>;
@group(0) @binding(5) var<storage, read> positions: array<i32>;
@group(0) @binding(6) var<storage, read_write> keys: array<Stored>;
@group(0) @binding(7) var<storage, read_write> values: array<Stored>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let quads = (params.head_dim + 3u) / 4u;
    let i = element(group, groups, lane);
    if i >= len_of(params.len) * params.heads * quads {
        return;
    }
    let quad = i % quads;
    let head = i / quads % params.heads;
    let t = i / quads / params.heads;
    let at = (t * params.heads + head) * params.head_dim + 4u * quad;
    var key = vec4<f32>();
    var value = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
        if 4u * quad + c < params.head_dim {
            key[c] = k[at + c];
            value[c] = v[at + c];
        }
    }
    let position = u32(positions[t]) % params.capacity;
    let row = (u32(slots[t]) * params.heads + head) * params.capacity + position;
    keys[row * quads + quad] = narrow(key);
    values[row * quads + quad] = narrow(value);
}
