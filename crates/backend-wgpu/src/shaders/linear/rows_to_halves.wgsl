// x [len, cols] in f16, for `coop`: each row times a power of two that brings its largest number to
// 2^14 .. 2^15, so that nothing overflows and small numbers keep their bits.
// halves: [token][units · 32], of eight columns in the order 0 4 1 5 2 6 3 7; the rest is 0.
// factors[token]: the inverse of that power. A workgroup makes one token.
struct Params {
    len: u32,
    cols: u32,
    units: u32,
}
#include prelude
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> halves: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read_write> factors: array<f32>;

var<workgroup> largest: array<f32, 256>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let token = flat_group(group, groups);
    if token >= len_of(params.len) {
        return;
    }
    let quads = params.cols / 4u;
    let start = token * quads;
    var top = 0.0;
    for (var i = thread; i < quads; i += 256u) {
        let a = abs(x[start + i]);
        top = max(top, max(max(a.x, a.y), max(a.z, a.w)));
    }
    largest[thread] = top;
    workgroupBarrier();
    for (var step = 128u; step > 0u; step >>= 1u) {
        if thread < step {
            largest[thread] = max(largest[thread], largest[thread + step]);
        }
        workgroupBarrier();
    }
    // Exponents alone. Rows without a largest number, and the least of floats, stay as they are.
    let exponent = (bitcast<u32>(largest[0]) >> 23u) & 255u;
    let up = select(127u, clamp(268u - exponent, 1u, 253u), exponent > 15u && exponent < 255u);
    if thread == 0u {
        factors[token] = bitcast<f32>((254u - up) << 23u);
    }
    let factor = bitcast<f32>(up << 23u);
    for (var i = thread; i < params.units * 4u; i += 256u) {
        var a = vec4<f32>();
        var b = vec4<f32>();
        if i * 2u < quads {
            a = x[start + i * 2u] * factor;
        }
        if i * 2u + 1u < quads {
            b = x[start + i * 2u + 1u] * factor;
        }
        let to = token * params.units * 8u + i * 2u;
        halves[to] = vec4<f16>(vec4<f32>(a.x, b.x, a.y, b.y));
        halves[to + 1u] = vec4<f16>(vec4<f32>(a.z, b.z, a.w, b.w));
    }
}
