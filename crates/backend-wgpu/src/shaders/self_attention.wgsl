// self_attention: every row attends to every row; q, k, v, y [len, heads·head_dim].
// A workgroup has one head of GT rows of queries.
struct Params {
    len: u32,
    heads: u32,
    head_dim: u32,
    scale: f32,
}
#include prelude

@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

var<private> head: u32;
var<private> t0: u32;
var<private> n_queries: u32;

/// Where a row of this head begins.
fn row(t: u32) -> u32 {
    return (t * params.heads + head) * params.head_dim;
}

fn query_quad(g: u32, i: u32) -> vec4<f32> {
    var quad = vec4<f32>();
    if g < n_queries {
        for (var c = 0u; c < 4u; c++) {
            if 4u * i + c < params.head_dim {
                quad[c] = q[row(t0 + g) + 4u * i + c];
            }
        }
    }
    return quad;
}

fn key_quad(t: i32, i: u32) -> vec4<f32> {
    var quad = vec4<f32>();
    for (var c = 0u; c < 4u; c++) {
        if 4u * i + c < params.head_dim {
            quad[c] = k[row(u32(t)) + 4u * i + c];
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
    return x * params.scale;
}
#include attention_tile

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = flat_group(group, groups);
    let len = len_of(params.len);
    head = at % params.heads;
    t0 = at / params.heads * GT;
    if t0 >= len {
        return;
    }
    n_queries = min(GT, len - t0);
    attend(lane, 0, i32(len) - 1);
    for (var g = 0u; g < n_queries; g++) {
        for (var a = 0u; a < ACC; a++) {
            let i = own_quad(lane, a);
            let made = result(g, a);
            for (var c = 0u; c < 4u; c++) {
                if 4u * i + c < params.head_dim {
                    y[row(t0 + g) + 4u * i + c] = made[c];
                }
            }
        }
    }
}
