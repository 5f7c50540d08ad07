// Codes as numbers, before their scales; a unit's codes stand as `linear/form.rs` says.
const ONE = vec4<u32>(0x3f800000u);

#if BITS == 4
// A sixteenth of the codes of four bytes, less the offset: as the top of the mantissa of numbers
// from 1 to 2, which is faster than to convert them.
fn sixteenths(v: vec4<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>((v & vec4<u32>(0x00780000u)) | ONE) - $(16+OFF).0 / 16.0;
}
fn low(w: u32) -> vec4<f32> {
    return sixteenths(vec4<u32>(w << 19u, w << 11u, w << 3u, w >> 5u));
}
fn high(w: u32) -> vec4<f32> {
    return sixteenths(vec4<u32>(w << 15u, w << 7u, w >> 1u, w >> 9u));
}
#endif
#if BITS == 8
fn bytes(word: u32) -> vec4<f32> {
    let w = word ^ 0x80808080u;
    let v = vec4<u32>(w << 15u, w << 7u, w >> 1u, w >> 9u);
    return bitcast<vec4<f32>>((v & vec4<u32>(0x007f8000u)) | ONE) - $(256+OFF).0 / 256.0;
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
