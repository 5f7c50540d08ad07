// experts for many tokens, whose uses are grouped by expert (`experts/group`), in f32, with nothing but
// workgroup memory; the weights packed (`linear/form.rs`). A workgroup of 256 goes over blocks of BM uses
// (16 or 64) of one of E experts and makes 64 rows for each, 32 columns at a time.
// GATE: hidden[use, i] = gelu_tanh(gate·x) · (up·x), 32 rows of each; x is the token's. Else: y[use, c] =
// down[c] · x[use].
struct Params {
    len: u32,
    units: u32,
    /// Tiles of one expert.
    tiles: u32,
    steps: u32,
    ups: u32,
    cols: u32,
    top_k: u32,
    /// Experts in this part of the matrix: the first, and how many.
    first: u32,
    n: u32,
}
#include prelude
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> rows: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> order: array<u32>;
@group(0) @binding(6) var<storage, read> starts: array<u32>;
@group(0) @binding(7) var<storage, read_write> y: array<f32>;
#if SCALE
@group(0) @binding(8) var<storage, read> scales: Scales;
#endif
#include linear/factors
#include linear/decode
#if GATE
#include functions
#endif

// Uses of an invocation.
const OWN = $(BM/16)u;
// Columns first, so that an invocation reads its numbers at once.
var<workgroup> xs: array<vec4<f32>, $(32*BM/4)>;
var<workgroup> ws: array<vec4<f32>, 512>;

// The expert of a block.
fn expert_of(block: u32) -> u32 {
    var low = 0u;
    var high = E;
    // Blocks of `low` begin at this one or before, those of `high` after it.
    while high - low > 1u {
        let middle = (low + high) / 2u;
        if starts[E + 1u + middle] <= block {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    // What this invocation brings: eight columns of a use and of a row.
    let line = thread / 4u;
    let part = thread % 4u;
    // What it makes: OWN uses of four rows.
    let m = thread / 16u;
    let n = thread % 16u;
#if GATE
    // Of four rows, two are the gate's, and two the same of the other factor.
    let out_rows = params.tiles * 4u;
    let own_row = min(group.y * 32u + line / 4u * 2u + line % 2u, out_rows - 1u);
    let row = own_row + select(0u, out_rows, line % 4u >= 2u);
    let first_row = group.y * 32u + n * 2u;
#else
    let out_rows = params.tiles * 8u;
    let row = min(group.y * 64u + line, out_rows - 1u);
    let first_row = group.y * 64u + n * 4u;
#endif
    let n_blocks = starts[2u * E + 1u];
    for (var block = group.x; block < n_blocks; block += groups.x) {
        let whole = expert_of(block);
        // Below the first, this wraps to a large number.
        let expert = whole - params.first;
        if expert >= params.n {
            continue;
        }
        let first = starts[whole] + (block - starts[E + 1u + whole]) * BM;
        let end = min(first + BM, starts[whole + 1u]);
        let tile = expert * params.tiles + row / 8u;
        let use_at = order[min(first + line, end - 1u)];
#if GATE
        let x_from = use_at / params.top_k * (params.cols / 4u) + part * 2u;
#else
        let x_from = use_at * (params.cols / 4u) + part * 2u;
#endif
        var acc: array<vec4<f32>, OWN>;
#for I 0 BM/16
        acc[$(I)] = vec4<f32>();
#endfor
        for (var u = 0u; u < params.units; u++) {
            var a = vec4<f32>();
            var b = vec4<f32>();
#if BM < 64
            if line < BM && u * 32u + part * 8u < params.cols {
#else
            if u * 32u + part * 8u < params.cols {
#endif
                a = x[x_from + u * 8u];
            }
#if BM < 64
            if line < BM && u * 32u + part * 8u + 4u < params.cols {
#else
            if u * 32u + part * 8u + 4u < params.cols {
#endif
                b = x[x_from + u * 8u + 1u];
            }
            var w = decode(tile, u, row % 8u, part);
            workgroupBarrier();
            for (var i = 0u; i < 4u; i++) {
                let column = part * 8u + i;
#if BM < 64
                if line < BM {
                    xs[column * $(BM/4)u + line / 4u][line % 4u] = a[i];
                    xs[(column + 4u) * $(BM/4)u + line / 4u][line % 4u] = b[i];
                }
#else
                xs[column * 16u + line / 4u][line % 4u] = a[i];
                xs[(column + 4u) * 16u + line / 4u][line % 4u] = b[i];
#endif
                ws[column * 16u + line / 4u][line % 4u] = w[0][i];
                ws[(column + 4u) * 16u + line / 4u][line % 4u] = w[1][i];
            }
            workgroupBarrier();
            for (var k = 0u; k < 32u; k++) {
                let wv = ws[k * 16u + n];
#if BM < 64
                acc[0] += xs[k * $(BM/4)u + m / 4u][m % 4u] * wv;
#else
                let xv = xs[k * 16u + m];
#for I 0 4
                acc[$(I)] += xv[$(I)] * wv;
#endfor
#endif
            }
        }
#for I 0 BM/16
        let place_$(I) = first + m * OWN + $(I)u;
        if place_$(I) < end {
            let to = order[place_$(I)] * out_rows;
            let v = acc[$(I)];
#if GATE
#for J 0 2
            if first_row + $(J)u < out_rows {
                let own = expert * params.tiles * 8u + first_row + $(J)u;
#if SCALE
                let gated = gelu_tanh(v[$(J)] * rows[own]) * (v[$(J+2)] * rows[own + out_rows]);
#else
                let gated = gelu_tanh(v[$(J)]) * v[$(J+2)];
#endif
                y[to + first_row + $(J)u] = gated;
            }
#endfor
#else
#for J 0 4
            if first_row + $(J)u < out_rows {
#if SCALE
                y[to + first_row + $(J)u] = v[$(J)] * rows[expert * out_rows + first_row + $(J)u];
#else
                y[to + first_row + $(J)u] = v[$(J)];
#endif
            }
#endfor
#endif
        }
#endfor
    }
}
