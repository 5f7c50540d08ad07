// What a unit of a row of a packed matrix adds to a product: `codes`, `scales` and `x`, bound by the
// kernel, are a matrix and activations as they are. RAGGED: the last unit is not whole.
#include linear/floats

fn sum4(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

// Activations of a unit begin at vector `x_at`; a row has `cols` of them.
fn unit_dot(tile: u32, u: u32, r: u32, x_at: u32, cols: u32) -> f32 {
    let at = (tile * params.units + u) * $(8*V)u + r;
#for C 0 V
    let c_$(C) = codes[at + $(8*C)u];
#endfor
#if SCALE
    let f = factors(tile, u, r);
#endif
#for C 0 8
#if RAGGED
    let in_$(C) = u * 32u + $(4*C)u < cols;
    let x_$(C) = select(vec4<f32>(), x[select(x_at, x_at + $(C)u, in_$(C))], in_$(C));
#else
    let x_$(C) = x[x_at + $(C)u];
#endif
#endfor
#if BITS == 4 || BITS == 8
    // Even and odd columns of each eight.
#for W 0 4
    let even_$(W) = vec4<f32>(x_$(2*W).xz, x_$(2*W+1).xz);
    let odd_$(W) = vec4<f32>(x_$(2*W).yw, x_$(2*W+1).yw);
#if BITS == 4
    let low_$(W) = low(c_0[$(W)]);
    let high_$(W) = high(c_0[$(W)]);
#else
    let low_$(W) = bytes(c_$(W/2)[$(W%2*2)]);
    let high_$(W) = bytes(c_$(W/2)[$(W%2*2+1)]);
#endif
#if AFFINE
    // A bias nearly cancels what codes add up to, so each number gets its own.
    let f_$(W) = f[$(W/2*2)] * $(16*(BITS==4)+256*(BITS==8)).0;
    let b_$(W) = vec4<f32>(f[$(W/2*2+1)]);
    let d_$(W) = even_$(W) * (low_$(W) * f_$(W) + b_$(W)) + odd_$(W) * (high_$(W) * f_$(W) + b_$(W));
#else
    let d_$(W) = even_$(W) * low_$(W) + odd_$(W) * high_$(W);
#endif
#endfor
#if AFFINE
    return sum4(d_0 + d_1) + sum4(d_2 + d_3);
#else
    // What was a sixteenth, or less.
    let own = f * $(16*(BITS==4)+256*(BITS==8)).0;
    return sum4(d_0 + d_1) * own.x + sum4(d_2 + d_3) * own.z;
#endif
#else
    var d = vec4<f32>();
#for C 0 8
#if BITS == 32
    d += x_$(C) * bitcast<vec4<f32>>(c_$(C));
#else
    d += x_$(C) * vec4<f32>(pair(c_$(C/2)[$(C%2*2)]), pair(c_$(C/2)[$(C%2*2+1)]));
#endif
#endfor
    return sum4(d);
#endif
}
