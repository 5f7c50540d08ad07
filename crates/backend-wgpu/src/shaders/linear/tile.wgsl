// linear for many tokens in f32, with nothing but workgroup memory:
// y[t, n] = Σ_k W[n, k] · x[t, k] (+ bias[n]). W packed (`linear/form.rs`), decoded exactly.
// A workgroup of 256 makes 64 tokens x 64 rows, 32 columns at a time; an invocation 4 x 4 of them.
struct Params {
    len: u32,
    units: u32,
    tiles: u32,
    steps: u32,
    ups: u32,
    cols: u32,
    pad0: u32,
    pad1: u32,
    outs: array<vec4<u32>, 3>,
}
#include prelude
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> rows: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
#for O 0 OUTS
@group(0) @binding($(5+O)) var<storage, read_write> y_$(O): array<f32>;
#endfor
#if SCALE
@group(0) @binding($(5+OUTS)) var<storage, read> scales: Scales;
#endif
#if BIAS
@group(0) @binding($(5+OUTS+(SCALE>0))) var<storage, read> bias: array<f32>;
#endif
#include linear/factors
#include linear/store

// Columns first, so that an invocation reads its four numbers at once.
var<workgroup> xs: array<vec4<f32>, 512>;
var<workgroup> ws: array<vec4<f32>, 512>;

#include linear/decode

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first_token = group.x * 64u;
    let first_row = group.y * 64u;
    let last_token = len_of(params.len) - 1u;
    // What this invocation brings: eight columns of a token and of a row.
    let line = thread / 4u;
    let part = thread % 4u;
    let tile = min(first_row / 8u + line / 8u, params.tiles - 1u);
    let x_from = min(first_token + line, last_token) * (params.cols / 4u) + part * 2u;
    // What it makes.
    let m = thread / 16u;
    let n = thread % 16u;
    var acc: array<vec4<f32>, 4>;
    for (var u = 0u; u < params.units; u++) {
        var a = vec4<f32>();
        var b = vec4<f32>();
        if u * 32u + part * 8u < params.cols {
            a = x[x_from + u * 8u];
        }
        if u * 32u + part * 8u + 4u < params.cols {
            b = x[x_from + u * 8u + 1u];
        }
        var w = decode(tile, u, line % 8u, part);
        workgroupBarrier();
        for (var i = 0u; i < 4u; i++) {
            let to = (part * 8u + i) * 16u + line / 4u;
            xs[to][line % 4u] = a[i];
            xs[to + 64u][line % 4u] = b[i];
            ws[to][line % 4u] = w[0][i];
            ws[to + 64u][line % 4u] = w[1][i];
        }
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let xv = xs[k * 16u + m];
            let wv = ws[k * 16u + n];
            acc[0] += xv.x * wv;
            acc[1] += xv.y * wv;
            acc[2] += xv.z * wv;
            acc[3] += xv.w * wv;
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let token = first_token + m * 4u + i;
        for (var j = 0u; j < 4u; j++) {
            let row = first_row + n * 4u + j;
            if token <= last_token && row < params.tiles * 8u {
#if SCALE
                store(token, row, acc[i][j] * rows[row]);
#else
                store(token, row, acc[i][j]);
#endif
            }
        }
    }
}
