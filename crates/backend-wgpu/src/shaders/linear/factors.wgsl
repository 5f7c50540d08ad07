// The factors of a packed matrix: `scales`, bound by the kernel, [tile][step][row of the tile].
// A step is what shares a scale: UPS units, or half a unit (HALVES). SCALE: 16 f16, 17 bf16, 32 f32.
#if SCALE == 32 && AFFINE
alias Scales = array<vec2<f32>>;
#endif
#if SCALE == 32 && !AFFINE
alias Scales = array<f32>;
#endif
#if SCALE == 16 || SCALE == 17
alias Scales = array<u32>;
#endif

#if SCALE
// Scale and bias number `i`.
fn factor_at(i: u32) -> vec2<f32> {
#if SCALE == 32 && AFFINE
    return scales[i];
#endif
#if SCALE == 32 && !AFFINE
    return vec2<f32>(scales[i], 0.0);
#endif
#if SCALE == 17 && AFFINE
    let w = scales[i];
    return vec2<f32>(bitcast<f32>(w << 16u), bitcast<f32>(w & 0xffff0000u));
#endif
#if SCALE == 17 && !AFFINE
    let w = scales[i / 2u];
    return vec2<f32>(bitcast<f32>(select(w << 16u, w & 0xffff0000u, (i & 1u) == 1u)), 0.0);
#endif
#if SCALE == 16 && AFFINE
    return unpack2x16float(scales[i]);
#endif
#if SCALE == 16 && !AFFINE
    return vec2<f32>(unpack2x16float(scales[i / 2u] >> (16u * (i & 1u))).x, 0.0);
#endif
}

// Scale and bias of the two halves of a unit.
fn factors(tile: u32, u: u32, r: u32) -> vec4<f32> {
#if HALVES
    let i = (tile * params.steps + u * 2u) * 8u + r;
    return vec4<f32>(factor_at(i), factor_at(i + 8u));
#else
#if UPS == 1
    let f = factor_at((tile * params.units + u) * 8u + r);
#else
    let f = factor_at((tile * params.steps + u / params.ups) * 8u + r);
#endif
    return vec4<f32>(f, f);
#endif
}
#endif
