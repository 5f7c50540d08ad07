// local_attention: every row attends to itself and the window − 1 rows before it, by content and by
// distance: score = cap · tanh(q′·(k·k_scale + R(d)) / cap), q′ = q · factors.
// q, k, v, y [len, heads·head_dim]; factors [head_dim]; by_distance [distances, heads·head_dim].
const GT: u32 = 1u;
struct Params {
    len: u32,
    heads: u32,
    head_dim: u32,
    window: u32,
    cap: f32,
    k_scale: f32,
}
#include prelude
#include functions

@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read> factors: array<f32>;
@group(0) @binding(6) var<storage, read> by_distance: array<f32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;

var<private> head: u32;
var<private> own: u32;

/// Where a row of this head begins.
fn row(t: u32) -> u32 {
    return (t * params.heads + head) * params.head_dim;
}

fn query_quad(g: u32, i: u32) -> vec4<f32> {
    var quad = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
        let d = 4u * i + c;
        if d < params.head_dim {
            quad[c] = q[row(own) + d] * factors[d];
        }
    }
    return quad;
}

fn key_quad(t: i32, i: u32) -> vec4<f32> {
    var quad = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
        let d = 4u * i + c;
        if d < params.head_dim {
            quad[c] = k[row(u32(t)) + d] * params.k_scale + by_distance[row(own - u32(t)) + d];
        }
    }
    return quad;
}

fn value_quad(t: i32, i: u32) -> vec4<f32> {
    var quad = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
        if 4u * i + c < params.head_dim {
            quad[c] = v[row(u32(t)) + 4u * i + c];
        }
    }
    return quad;
}

fn score(x: f32) -> f32 {
    return params.cap * tanh_exact(x / params.cap);
}
#include attention_tile

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = flat_group(group, groups);
    head = at % params.heads;
    own = at / params.heads;
    if own >= len_of(params.len) {
        return;
    }
    attend(lane, max(0, i32(own) - i32(params.window) + 1), i32(own));
    for (var a = 0u; a < ACC; a++) {
        let i = own_quad(lane, a);
        let made = result(0u, a);
        for (var c = 0u; c < 4u; c++) {
            if 4u * i + c < params.head_dim {
                y[row(own) + 4u * i + c] = made[c];
            }
        }
    }
}
