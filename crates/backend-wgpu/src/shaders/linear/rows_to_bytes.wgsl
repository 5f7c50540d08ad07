// x [len, cols] in bytes, for `matvec`: a scale for each token and unit of 32 columns.
// MODE 1: two planes, n = 256 · high + low, scale = largest / 32512; MODE 2: one, largest / 127.
// bytes: [token][unit / 4][plane][half of the unit][unit % 4][16]; of eight columns, the even ones
// come first, as the codes of a packed matrix do.
// x_scales: scale; scale · Σ of the rounded numbers of the first half, of the second, and of both.
// A workgroup makes 32 units of a token, eight invocations each.
struct Params {
    len: u32,
    cols: u32,
    units: u32,
}
#include prelude
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> bytes: array<u32>;
@group(0) @binding(4) var<storage, read_write> x_scales: array<vec4<f32>>;

var<workgroup> largest: array<f32, 256>;
var<workgroup> sums: array<i32, 256>;

fn pack(v: vec4<i32>) -> u32 {
    let b = vec4<u32>(v & vec4<i32>(255));
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let quads = (params.units + 3u) / 4u;
    let blocks = (params.units + 31u) / 32u;
    let at = flat_group(group, groups);
    let token = at / blocks;
    let unit = at % blocks * 32u + thread / 8u;
    let part = thread % 8u;
    // The columns of two invocations, of which one takes the even ones.
    let column = unit * 32u + part / 2u * 8u;
    let start = (token * params.cols + column) / 4u;
    var a = vec4<f32>();
    var b = vec4<f32>();
    if token < len_of(params.len) && column < params.cols {
        a = x[start];
        if column + 4u < params.cols {
            b = x[start + 1u];
        }
    }
    let v = select(vec4<f32>(a.xz, b.xz), vec4<f32>(a.yw, b.yw), part % 2u == 1u);
    let size = abs(v);
    largest[thread] = max(max(size.x, size.y), max(size.z, size.w));
    workgroupBarrier();
    var top = 0.0;
    for (var i = 0u; i < 8u; i++) {
        top = max(top, largest[(thread & ~7u) + i]);
    }
#if MODE == 1
    const STEPS = 32512.0;
#else
    const STEPS = 127.0;
#endif
    let scale = top / STEPS;
    let inverse = select(0.0, STEPS / top, scale > 0.0);
    let n = vec4<i32>(round(v * inverse));
    sums[thread] = n.x + n.y + n.z + n.w;
    workgroupBarrier();
    if token >= len_of(params.len) || unit >= quads * 4u {
        return;
    }
    let to = ((token * quads + unit / 4u) * $(8*(3-MODE))u + part / 4u * 4u + unit % 4u) * 4u + part % 4u;
#if MODE == 1
    let high = (n + vec4<i32>(128)) >> vec4<u32>(8u);
    bytes[to] = pack(high);
    bytes[to + 32u] = pack(n - high * 256);
#else
    bytes[to] = pack(n);
#endif
    if part == 0u && unit < params.units {
        let lo = scale * f32(sums[thread] + sums[thread + 1u] + sums[thread + 2u] + sums[thread + 3u]);
        let hi = scale * f32(sums[thread + 4u] + sums[thread + 5u] + sums[thread + 6u] + sums[thread + 7u]);
        x_scales[token * params.units + unit] = vec4<f32>(scale, lo, hi, lo + hi);
    }
}
