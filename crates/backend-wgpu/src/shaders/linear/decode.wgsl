// Eight columns of a row of a packed matrix, exactly: `codes` and `scales`, bound by the kernel.
#if BITS == 4
// Eight codes in their order, less the offset.
fn codes_of(w: u32) -> array<vec4<f32>, 2> {
    let first = vec4<u32>(w, w >> 4u, w >> 8u, w >> 12u) & vec4<u32>(15u);
    let second = vec4<u32>(w >> 16u, w >> 20u, w >> 24u, w >> 28u) & vec4<u32>(15u);
    return array<vec4<f32>, 2>(vec4<f32>(first) - $(OFF).0, vec4<f32>(second) - $(OFF).0);
}
#endif
#if BITS == 8
fn codes_of(even: u32, odd: u32) -> array<vec4<f32>, 2> {
    let e = even ^ 0x80808080u;
    let o = odd ^ 0x80808080u;
    let first = vec4<u32>(e, o, e >> 8u, o >> 8u) & vec4<u32>(255u);
    let second = vec4<u32>(e >> 16u, o >> 16u, e >> 24u, o >> 24u) & vec4<u32>(255u);
    return array<vec4<f32>, 2>(vec4<f32>(first) - $(OFF).0, vec4<f32>(second) - $(OFF).0);
}
#endif
#if BITS == 16
fn pair(w: u32) -> vec2<f32> {
    return unpack2x16float(w);
}
#endif
#if BITS == 17
fn pair(w: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(w << 16u), bitcast<f32>(w & 0xffff0000u));
}
#endif

// Columns 8 · part .. of a unit of a row.
fn decode(tile: u32, u: u32, r: u32, part: u32) -> array<vec4<f32>, 2> {
    let at = (tile * params.units + u) * $(8*V)u + r;
#if BITS == 4
    let v = codes_of(codes[at][part]);
#endif
#if BITS == 8
    let c = codes[at + part / 2u * 8u];
    let v = codes_of(c[part % 2u * 2u], c[part % 2u * 2u + 1u]);
#endif
#if BITS == 16 || BITS == 17
    let c = codes[at + part * 8u];
    return array<vec4<f32>, 2>(vec4<f32>(pair(c.x), pair(c.y)), vec4<f32>(pair(c.z), pair(c.w)));
#endif
#if BITS == 32
    let c = codes[at + part * 16u];
    let d = codes[at + part * 16u + 8u];
    return array<vec4<f32>, 2>(bitcast<vec4<f32>>(c), bitcast<vec4<f32>>(d));
#endif
#if SCALE
    let all = factors(tile, u, r);
    let f = select(all.xy, all.zw, part >= 2u);
#if AFFINE
    return array<vec4<f32>, 2>(v[0] * f.x + f.y, v[1] * f.x + f.y);
#else
    return array<vec4<f32>, 2>(v[0] * f.x, v[1] * f.x);
#endif
#endif
}
