// linear for up to TOK tokens: y[t, n] = Σ_k W[n, k] · x[t, k] (+ bias[n]).
// W packed (`linear/form.rs`): tiles of 8 rows, units of 32 columns. x: MODE 0 as it is; MODE 1 in
// two bytes, MODE 2 in one (`rows_to_bytes`). BITS: 4, 8; 16 f16, 17 bf16, 32 f32.
// Workgroup: Q parts of NT invocations, R tiles each; an invocation takes one row of each and every
// NT/8-th unit.
// LOCAL: x comes as it is, and each workgroup makes bytes of its U units for itself.
// SG: size of a subgroup if it is known and may be used. GLU: gelu_tanh(first half) · second half.
// UP: gelu_tanh(what is made) · some channels of `up`. KEEP: what a gate makes also in bytes, a unit
// of CHANNELS by a workgroup.
struct Params {
    len: u32,
    units: u32,
    tiles: u32,
    /// Rounds of R·UNR units that need no check.
    rounds: u32,
    steps: u32,
    ups: u32,
    cols: u32,
    pad: u32,
    outs: array<vec4<u32>, 3>,
    /// Channels of `up`, and the first of them that is a factor.
    up: vec4<u32>,
}
#include prelude
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> rows: array<f32>;
#if MODE == 0 || LOCAL
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
#else
@group(0) @binding(4) var<storage, read> x: array<vec4<u32>>;
#endif
#for O 0 OUTS
@group(0) @binding($(5+O)) var<storage, read_write> y_$(O): array<f32>;
#endfor
#if SCALE
@group(0) @binding($(5+OUTS)) var<storage, read> scales: Scales;
#endif
#if MODE && !LOCAL
@group(0) @binding($(6+OUTS)) var<storage, read> x_scales: array<vec4<f32>>;
#endif
#if BIAS
@group(0) @binding($(5+OUTS+(SCALE>0)+(MODE>LOCAL))) var<storage, read> bias: array<f32>;
#endif
#if UP
@group(0) @binding($(5+OUTS+(SCALE>0)+(MODE>LOCAL))) var<storage, read> up: array<f32>;
#endif
#if KEEP
@group(0) @binding($(5+OUTS+(SCALE>0)+(MODE>LOCAL))) var<storage, read_write> bytes: array<u32>;
@group(0) @binding($(6+OUTS+(SCALE>0)+(MODE>LOCAL))) var<storage, read_write> bytes_scales: array<vec4<f32>>;
#include linear/keep_bytes
var<workgroup> unit: array<f32, $(TOK*32)>;
#endif
#if LOCAL || KEEP
#include linear/byte_parts
#endif
#include linear/factors
#include linear/store
#if GLU || UP
#include functions
#endif

const SLOTS = $(NT/8)u;
// Results of one part.
const RESULTS = $(R*TOK*8/(1+GLU))u;
const LOW = vec4<u32>(0x0f0f0f0fu);
#if SG
const PARTS = $(NT/SG)u;
#else
const PARTS = $(NT/8)u;
#endif
var<workgroup> partial: array<f32, $(Q*R*TOK*8)*PARTS>;

#if LOCAL
#include linear/local_bytes
#endif
#if MODE == 0
#include linear/floats
#endif

fn sum4(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

@compute @workgroup_size($(Q*NT))
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let r = thread % 8u;
#if Q > 1
    let part = thread / $(NT)u;
    let slot = thread % $(NT)u / 8u;
#else
    const part = 0u;
    let slot = thread / 8u;
#endif
    let len = len_of(params.len);
#if GLU
    let half_tiles = params.tiles / 2u;
    let group_first = flat_group(group, groups) * $(Q*R/2)u;
    let first = group_first + part * $(R/2)u;
#for J 0 R
    let tile_$(J) = min(first + $(J%(R/2))u, half_tiles - 1u) + $(J/(R/2))u * half_tiles;
#endfor
#else
    let group_first = flat_group(group, groups) * $(Q*R)u;
    let first = group_first + part * $(R)u;
#for J 0 R
    let tile_$(J) = min(first + $(J)u, params.tiles - 1u);
#endfor
#endif
#if LOCAL
    make_bytes(thread, len);
    workgroupBarrier();
#endif
#for T 0 TOK
    let token_$(T) = min($(T)u, len - 1u);
#for J 0 R
    var acc_$(J)_$(T) = 0.0;
#endfor
#endfor
#for PASS 0 2
#if PASS == 0
    for (var i = 0u; i < params.rounds * $(UNR)u; i += $(UNR)u) {
#else
    for (var i = params.rounds * $(UNR)u; slot + i * SLOTS < params.units; i++) {
#endif
#for E 0 UNR*(1-PASS)+PASS
        let u_$(E) = slot + (i + $(E)u) * SLOTS;
#for J 0 R
        let at_$(E)_$(J) = (tile_$(J) * params.units + u_$(E)) * $(8*V)u + r;
#for C 0 V
        let c_$(E)_$(J)_$(C) = codes[at_$(E)_$(J) + $(8*C)u];
#endfor
#if SCALE
        let f_$(E)_$(J) = factors(tile_$(J), u_$(E), r);
#endif
#endfor
#endfor
#for E 0 UNR*(1-PASS)+PASS
#for T 0 TOK
        {
#if MODE == 0
            let at = token_$(T) * (params.cols / 4u) + u_$(E) * 8u;
#for C 0 8
#if RAGGED
            let x_$(C) = select(vec4<f32>(), x[at + $(C)u], u_$(E) * 32u + $(4*C)u < params.cols);
#else
            let x_$(C) = x[at + $(C)u];
#endif
#endfor
#for J 0 R
            {
#if BITS == 4
                let c = c_$(E)_$(J)_0;
#for H 0 2
#for W 0 2
                let even_$(H*2+W) = vec4<f32>(x_$(H*4+W*2).xz, x_$(H*4+W*2+1).xz);
                let odd_$(H*2+W) = vec4<f32>(x_$(H*4+W*2).yw, x_$(H*4+W*2+1).yw);
#if AFFINE
                // A bias nearly cancels what codes add up to, so each number gets its own.
                let f_$(H*2+W) = f_$(E)_$(J)[$(2*H)] * 16.0;
                let b_$(H*2+W) = vec4<f32>(f_$(E)_$(J)[$(2*H+1)]);
                let d_$(H*2+W) = even_$(H*2+W) * (low(c[$(H*2+W)]) * f_$(H*2+W) + b_$(H*2+W))
                    + odd_$(H*2+W) * (high(c[$(H*2+W)]) * f_$(H*2+W) + b_$(H*2+W));
#else
                let d_$(H*2+W) = even_$(H*2+W) * low(c[$(H*2+W)]) + odd_$(H*2+W) * high(c[$(H*2+W)]);
#endif
#endfor
#endfor
                let lo = sum4(d_0 + d_1);
                let hi = sum4(d_2 + d_3);
#endif
#if BITS == 8
#for H 0 2
#for W 0 2
                let even_$(H*2+W) = vec4<f32>(x_$(H*4+W*2).xz, x_$(H*4+W*2+1).xz);
                let odd_$(H*2+W) = vec4<f32>(x_$(H*4+W*2).yw, x_$(H*4+W*2+1).yw);
#if AFFINE
                let f_$(H*2+W) = f_$(E)_$(J)[$(2*H)] * 256.0;
                let b_$(H*2+W) = vec4<f32>(f_$(E)_$(J)[$(2*H+1)]);
                let d_$(H*2+W) = even_$(H*2+W) * (bytes(c_$(E)_$(J)_$(H)[$(W*2)]) * f_$(H*2+W) + b_$(H*2+W))
                    + odd_$(H*2+W) * (bytes(c_$(E)_$(J)_$(H)[$(W*2+1)]) * f_$(H*2+W) + b_$(H*2+W));
#else
                let d_$(H*2+W) = even_$(H*2+W) * bytes(c_$(E)_$(J)_$(H)[$(W*2)]) + odd_$(H*2+W) * bytes(c_$(E)_$(J)_$(H)[$(W*2+1)]);
#endif
#endfor
#endfor
                let lo = sum4(d_0 + d_1);
                let hi = sum4(d_2 + d_3);
#endif
#if BITS == 16 || BITS == 17
                var d = vec4<f32>();
#for C 0 8
                d += x_$(C) * vec4<f32>(pair(c_$(E)_$(J)_$(C/2)[$(C%2*2)]), pair(c_$(E)_$(J)_$(C/2)[$(C%2*2+1)]));
#endfor
#endif
#if BITS == 32
                var d = vec4<f32>();
#for C 0 8
                d += x_$(C) * bitcast<vec4<f32>>(c_$(E)_$(J)_$(C));
#endfor
#endif
#if SCALE
#if AFFINE
                acc_$(J)_$(T) += lo + hi;
#else
                // What was a sixteenth, or less.
                let f = f_$(E)_$(J) * $(16*(BITS==4)+256*(BITS==8)).0;
                acc_$(J)_$(T) += lo * f.x + hi * f.z;
#endif
#else
                acc_$(J)_$(T) += sum4(d);
#endif
            }
#endfor
#else
            // Four units of a token stand side by side, so that a subgroup reads them at once.
            let at = (token_$(T) * ((params.units + 3u) / 4u) + (u_$(E) >> 2u)) * $(8*(3-MODE))u + (u_$(E) & 3u);
#for P 0 3-MODE
#if LOCAL
            let a_$(P) = local_bytes[at + $(8*P)u];
            let b_$(P) = local_bytes[at + $(8*P+4)u];
#else
            let a_$(P) = x[at + $(8*P)u];
            let b_$(P) = x[at + $(8*P+4)u];
#endif
#endfor
#if LOCAL
            let s = local_scales[token_$(T) * params.units + u_$(E)];
#else
            let s = x_scales[token_$(T) * params.units + u_$(E)];
#endif
#for J 0 R
            {
#if BITS == 4
                let c = c_$(E)_$(J)_0;
                let low = c & LOW;
                let high = (c >> vec4<u32>(4u)) & LOW;
#for P 0 3-MODE
                let lo_$(P) = dot4I8Packed(low.x, a_$(P).x) + dot4I8Packed(high.x, a_$(P).y)
                    + dot4I8Packed(low.y, a_$(P).z) + dot4I8Packed(high.y, a_$(P).w);
                let hi_$(P) = dot4I8Packed(low.z, b_$(P).x) + dot4I8Packed(high.z, b_$(P).y)
                    + dot4I8Packed(low.w, b_$(P).z) + dot4I8Packed(high.w, b_$(P).w);
#endfor
#else
                let c = c_$(E)_$(J)_0;
                let d = c_$(E)_$(J)_1;
#for P 0 3-MODE
                let lo_$(P) = dot4I8Packed(c.x, a_$(P).x) + dot4I8Packed(c.y, a_$(P).y)
                    + dot4I8Packed(c.z, a_$(P).z) + dot4I8Packed(c.w, a_$(P).w);
                let hi_$(P) = dot4I8Packed(d.x, b_$(P).x) + dot4I8Packed(d.y, b_$(P).y)
                    + dot4I8Packed(d.z, b_$(P).z) + dot4I8Packed(d.w, b_$(P).w);
#endfor
#endif
#if MODE == 1
                let lo = lo_0 * 256 + lo_1;
                let hi = hi_0 * 256 + hi_1;
#else
                let lo = lo_0;
                let hi = hi_0;
#endif
                let f = f_$(E)_$(J);
                // Bytes have their sign bit turned: they are codes less 128.
#if BITS == 4
                const OFFSET = $(OFF).0;
#else
                const OFFSET = $(OFF).0 - 128.0;
#endif
#if HALVES
                acc_$(J)_$(T) += f.x * (f32(lo) * s.x - OFFSET * s.y) + f.z * (f32(hi) * s.x - OFFSET * s.z);
#if AFFINE
                acc_$(J)_$(T) += f.y * s.y + f.w * s.z;
#endif
#else
                acc_$(J)_$(T) += f.x * (f32(lo + hi) * s.x - OFFSET * s.w);
#if AFFINE
                acc_$(J)_$(T) += f.y * s.w;
#endif
#endif
            }
#endfor
#endif
        }
#endfor
#endfor
    }
#endfor
#for J 0 R
#for T 0 TOK
    {
        var v = acc_$(J)_$(T);
#if SG
#if SG > 8
        v += subgroupShuffleXor(v, 8u);
#endif
#if SG > 16
        v += subgroupShuffleXor(v, 16u);
#endif
#if SG > 32
        v += subgroupShuffleXor(v, 32u);
#endif
        if (thread % $(SG)u) < 8u {
            partial[((part * $(R*TOK)u + $(J*TOK+T)u) * PARTS + thread % $(NT)u / $(SG)u) * 8u + r] = v;
        }
#else
        partial[((part * $(R*TOK)u + $(J*TOK+T)u) * PARTS + slot) * 8u + r] = v;
#endif
    }
#endfor
#endfor
    workgroupBarrier();
    // Who is left sums what the others found: `jt` counts tiles and tokens.
    for (var all = thread; all < $(Q)u * RESULTS; all += $(Q*NT)u) {
        let own = all / RESULTS;
        let o = all % RESULTS;
        let found = own * $(R*TOK)u;
        let jt = o / 8u;
        let tile = group_first + own * $(R/(1+GLU))u + jt / $(TOK)u;
        let token = jt % $(TOK)u;
        let row = tile * 8u + o % 8u;
        var sum = 0.0;
        for (var p = 0u; p < PARTS; p++) {
            sum += partial[((found + jt) * PARTS + p) * 8u + o % 8u];
        }
#if GLU
        if token >= len || tile >= half_tiles {
            continue;
        }
        var other = 0.0;
        for (var p = 0u; p < PARTS; p++) {
            other += partial[((found + jt + $(R/2*TOK)u) * PARTS + p) * 8u + o % 8u];
        }
#if SCALE
        sum *= rows[row];
        other *= rows[row + half_tiles * 8u];
#endif
        let gated = gelu_tanh(sum) * other;
        store(token, row, gated);
#if KEEP
        unit[token * 32u + (tile - group_first) * 8u + o % 8u] = gated;
#endif
#else
        if token < len && tile < params.tiles {
#if SCALE
            sum *= rows[row];
#endif
#if UP
            let column = params.outs[0].z + row;
            if row < params.outs[0].y {
                store(token, row, gelu_tanh(sum) * up[token * params.up.x + params.up.y + column]);
            }
#else
            store(token, row, sum);
#endif
        }
#endif
    }
#if KEEP
    workgroupBarrier();
    if thread < $(TOK*8)u && thread / 8u < len {
        let at = thread * 4u;
        keep_bytes(thread / 8u, group_first * 2u + thread % 8u, vec4<f32>(unit[at], unit[at + 1u], unit[at + 2u], unit[at + 3u]));
    }
#endif
}
