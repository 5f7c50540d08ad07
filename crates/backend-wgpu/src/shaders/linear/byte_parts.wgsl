// Numbers in two bytes, n = 256 · high + low, a scale for each 32 of them: what `rows_to_bytes` makes,
// by eight neighbours of a subgroup that have four numbers each.
struct ByteParts {
    high: u32,
    low: u32,
    scale: f32,
    /// Sums of the rounded numbers: of the four neighbours that share a half, and of the others.
    sum: i32,
    other: i32,
}

fn pack(v: vec4<i32>) -> u32 {
    let b = vec4<u32>(v & vec4<i32>(255));
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

fn byte_parts(v: vec4<f32>) -> ByteParts {
    let size = abs(v);
    var top = max(max(size.x, size.y), max(size.z, size.w));
    top = max(top, subgroupShuffleXor(top, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    top = max(top, subgroupShuffleXor(top, 4u));
    let scale = top / 32512.0;
    let inverse = select(0.0, 32512.0 / top, scale > 0.0);
    let n = vec4<i32>(round(v * inverse));
    var sum = n.x + n.y + n.z + n.w;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    let other = subgroupShuffleXor(sum, 4u);
    let high = (n + vec4<i32>(128)) >> vec4<u32>(8u);
    return ByteParts(pack(high), pack(n - high * 256), scale, sum, other);
}

/// Scale; scale · Σ of the rounded numbers of the first half, of the second, and of both; right for
/// the first of the eight.
fn byte_scales(b: ByteParts) -> vec4<f32> {
    let lo = b.scale * f32(b.sum);
    let hi = b.scale * f32(b.other);
    return vec4<f32>(b.scale, lo, hi, lo + hi);
}
