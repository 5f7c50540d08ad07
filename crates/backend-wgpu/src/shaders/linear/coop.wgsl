// linear for many tokens with cooperative matrices: y[t, n] = Σ_k W[n, k] · x[t, k] (+ bias[n]).
// x in f16 (`rows_to_halves`); W packed (`linear/form.rs`), made f16 on its way; sums in f32.
// Workgroup: NT invocations, a tile of BM tokens and BN rows of W, BK columns at a time, of which
// each subgroup of 32 multiplies WM x WN. WPT: words of codes that an invocation takes at a time.
// WHOLE: rows come in fours, and y is written in vectors.
// SPLIT: the columns are shared by so many workgroups, and `join` adds what they find.
struct Params {
    len: u32,
    units: u32,
    tiles: u32,
    /// Rounds of BK columns of one workgroup.
    rounds: u32,
    steps: u32,
    ups: u32,
    pad0: u32,
    pad1: u32,
    outs: array<vec4<u32>, 3>,
}
#include prelude
#if WPT == 4
alias Words = vec4<u32>;
#endif
#if WPT == 2
alias Words = vec2<u32>;
#endif
#if WPT == 1
alias Words = u32;
#endif
@group(0) @binding(2) var<storage, read> codes: array<Words>;
@group(0) @binding(3) var<storage, read> rows: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<vec4<f16>>;
@group(0) @binding(5) var<storage, read> factors_of_x: array<f32>;
#for O 0 OUTS
@group(0) @binding($(6+O)) var<storage, read_write> y_$(O): array<Out>;
#endfor
#if SCALE
@group(0) @binding($(6+OUTS)) var<storage, read> scales: Scales;
#endif
#if BIAS
@group(0) @binding($(6+OUTS+(SCALE>0))) var<storage, read> bias: array<f32>;
#endif
#include linear/factors
#include linear/store

// Vectors of a row of a tile: some are left free, so that rows begin in different banks.
const LD = $((BK+8)/4)u;
// Words of a unit, and of them those that one invocation takes.
const UNIT_WORDS = $(4*V)u;
const TAKEN = $(4*V/WPT)u;
var<workgroup> xs: array<vec4<f16>, $(BM*((BK+8)/4))>;
var<workgroup> ws: array<vec4<f16>, $(BN*((BK+8)/4))>;
var<workgroup> out: array<vec4<f32>, $(NT/32*16*4)>;

#if BITS == 4 || BITS == 8
#if BITS == 4
const MASK = 0x000f000fu;
#else
const MASK = 0x00ff00ffu;
#endif
// Two codes, 16 bits apart, less the offset: 1024 + code in f16 has the code as its last bits.
fn pair(w: u32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float((w & MASK) | 0x64006400u)) - vec2<f16>($(1024+OFF).0);
}
#endif
#if BITS == 16
fn pair(w: u32, up: f32) -> vec2<f16> {
    return vec2<f16>(unpack2x16float(w) * up);
}
#endif
#if BITS == 17
fn pair(w: u32, up: f32) -> vec2<f16> {
    return vec2<f16>(vec2<f32>(bitcast<f32>(w << 16u), bitcast<f32>(w & 0xffff0000u)) * up);
}
#endif

@compute @workgroup_size($(NT))
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let first_token = group.x / $(SPLIT)u * $(BM)u;
    let first_row = group.y * $(BN)u;
    let first_unit = group.x % $(SPLIT)u * params.rounds * $(BK/32)u;
    let warp_m = (subgroup % $(BM/WM)u) * $(WM)u;
    let warp_n = (subgroup / $(BM/WM)u) * $(WN)u;
    let last_token = len_of(params.len) - 1u;

    // Where this invocation's parts of the tiles come from and go to.
#for E 0 XL
    let xi_$(E) = thread + $(E*NT)u;
    let x_token_$(E) = min(first_token + xi_$(E) / $(BK/8)u, last_token);
    let x_from_$(E) = (x_token_$(E) * params.units + first_unit) * 8u + (xi_$(E) % $(BK/8)u) * 2u;
    let x_to_$(E) = (xi_$(E) / $(BK/8)u) * LD + (xi_$(E) % $(BK/8)u) * 2u;
    var xa_$(E) = x[x_from_$(E)];
    var xb_$(E) = x[x_from_$(E) + 1u];
#endfor
#for E 0 WL
    let wi_$(E) = thread + $(E*NT)u;
    // Neighbours take what stands side by side: parts of 16 bytes, then rows, then the unit's rest.
    let w_part_$(E) = wi_$(E) % $(4/WPT)u;
    let w_row_$(E) = wi_$(E) / $(4/WPT)u % $(BN)u;
    let w_quad_$(E) = wi_$(E) / $(4/WPT*BN)u % $(V)u;
    let w_unit_$(E) = wi_$(E) / $(4/WPT*BN*V)u;
    let w_tile_$(E) = min((first_row + w_row_$(E)) / 8u, params.tiles - 1u);
    let w_r_$(E) = w_row_$(E) % 8u;
    let w_from_$(E) = (((w_tile_$(E) * params.units + first_unit + w_unit_$(E)) * $(V)u + w_quad_$(E)) * 8u + w_r_$(E)) * $(4/WPT)u + w_part_$(E);
    // A word has so many columns; eight of them are two vectors.
    let w_to_$(E) = w_row_$(E) * LD + w_unit_$(E) * 8u + (w_quad_$(E) * 4u + w_part_$(E) * $(WPT)u) * 2u / $(V)u;
    var c_$(E) = codes[w_from_$(E)];
#if SCALE
    var f_$(E) = factors(w_tile_$(E), first_unit + w_unit_$(E), w_r_$(E));
#else
    let up_$(E) = 1.0 / rows[w_tile_$(E) * 8u + w_r_$(E)];
#endif
#endfor
#for I 0 WM/16
#for J 0 WN/16
    var acc_$(I)_$(J) = coop_mat16x16<f32, C>();
#endfor
#endfor
    for (var round = 0u; round < params.rounds; round++) {
        workgroupBarrier();
#for E 0 XL
        xs[x_to_$(E)] = xa_$(E);
        xs[x_to_$(E) + 1u] = xb_$(E);
#endfor
#for E 0 WL
        {
#for C 0 WPT
#if WPT == 1
            let w_$(C) = c_$(E);
#else
            let w_$(C) = c_$(E)[$(C)];
#endif
#endfor
#if SCALE
#if HALVES
            let second = w_quad_$(E) * 4u + w_part_$(E) * $(WPT)u >= $(2*V)u;
            let f = select(f_$(E).xy, f_$(E).zw, second);
#else
            let f = f_$(E).xy;
#endif
            let scale = vec2<f16>(f16(f.x));
#if AFFINE
            let base = vec2<f16>(f16(f.y));
#endif
#endif
#if BITS == 4
#for C 0 WPT
#for H 0 4
#if HALVES && WPT == 4
#if AFFINE
            let h_$(C)_$(H) = pair(w_$(C) >> $(4*H)u) * vec2<f16>(f16(f_$(E)[$(C/2*2)])) + vec2<f16>(f16(f_$(E)[$(C/2*2+1)]));
#else
            let h_$(C)_$(H) = pair(w_$(C) >> $(4*H)u) * vec2<f16>(f16(f_$(E)[$(C/2*2)]));
#endif
#else
#if AFFINE
            let h_$(C)_$(H) = pair(w_$(C) >> $(4*H)u) * scale + base;
#else
            let h_$(C)_$(H) = pair(w_$(C) >> $(4*H)u) * scale;
#endif
#endif
#endfor
            ws[w_to_$(E) + $(2*C)u] = vec4<f16>(h_$(C)_0, h_$(C)_1);
            ws[w_to_$(E) + $(2*C+1)u] = vec4<f16>(h_$(C)_2, h_$(C)_3);
#endfor
#endif
#if BITS == 8
#for C 0 WPT/2
#for H 0 2
#for B 0 2
#if AFFINE
            let h_$(C)_$(H)_$(B) = pair((w_$(2*C+B) ^ 0x80808080u) >> $(8*H)u) * scale + base;
#else
            let h_$(C)_$(H)_$(B) = pair((w_$(2*C+B) ^ 0x80808080u) >> $(8*H)u) * scale;
#endif
#endfor
            ws[w_to_$(E) + $(2*C+H)u] = vec4<f16>(h_$(C)_$(H)_0, h_$(C)_$(H)_1);
#endfor
#endfor
#endif
#if BITS == 16 || BITS == 17
            let p_0 = pair(w_0, up_$(E));
            let p_1 = pair(w_1, up_$(E));
            let p_2 = pair(w_2, up_$(E));
            let p_3 = pair(w_3, up_$(E));
            ws[w_to_$(E)] = vec4<f16>(p_0.x, p_2.x, p_0.y, p_2.y);
            ws[w_to_$(E) + 1u] = vec4<f16>(p_1.x, p_3.x, p_1.y, p_3.y);
#endif
        }
#endfor
        workgroupBarrier();
        // What comes next is on its way while this is multiplied.
        let next = min(round + 1u, params.rounds - 1u);
#for E 0 XL
        xa_$(E) = x[x_from_$(E) + next * $(BK/4)u];
        xb_$(E) = x[x_from_$(E) + next * $(BK/4)u + 1u];
#endfor
#for E 0 WL
        c_$(E) = codes[w_from_$(E) + next * $(BK/32*V*8*4/WPT)u];
#if SCALE
        f_$(E) = factors(w_tile_$(E), first_unit + w_unit_$(E) + next * $(BK/32)u, w_r_$(E));
#endif
#endfor
#for S 0 BK/16
        {
#for I 0 WM/16
            let a_$(I) = coopLoadT<coop_mat16x16<f16, A>>(&xs[(warp_m + $(16*I)u) * LD + $(4*S)u], LD);
#endfor
#for J 0 WN/16
            let b_$(J) = coopLoad<coop_mat16x16<f16, B>>(&ws[(warp_n + $(16*J)u) * LD + $(4*S)u], LD);
#endfor
#for I 0 WM/16
#for J 0 WN/16
            acc_$(I)_$(J) = coopMultiplyAdd(a_$(I), b_$(J), acc_$(I)_$(J));
#endfor
#endfor
        }
#endfor
    }
    let mine = subgroup * 64u;
#for I 0 WM/16
#for J 0 WN/16
    {
        let value = acc_$(I)_$(J);
        let stride = 4u;
        coopStoreT(value, &out[mine], stride);
    }
    workgroupBarrier();
#for E 0 2
    {
        let token = first_token + warp_m + $(16*I+8*E)u + lane / 4u;
        let row = first_row + warp_n + $(16*J)u + (lane % 4u) * 4u;
        if token <= last_token && row < params.tiles * 8u {
            let v = out[mine + ($(8*E)u + lane / 4u) * 4u + lane % 4u] * factors_of_x[token];
#if SPLIT > 1
            y_0[((group.x % $(SPLIT)u * (last_token + 1u) + token) * params.tiles * 8u + row) / 4u] = v;
#else
            let scaled = v * vec4<f32>(rows[row], rows[row + 1u], rows[row + 2u], rows[row + 3u]);
#if WHOLE
            store(token, row, scaled);
#else
#for C 0 4
            store(token, row + $(C)u, scaled[$(C)]);
#endfor
#endif
#endif
        }
    }
#endfor
    workgroupBarrier();
#endfor
#endfor
}
