// The numbers of keys and values: a quad of f32, or of bf16 with HALVES.
#if HALVES
alias Stored = vec2<u32>;

fn widen(x: Stored) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(x.x << 16u, x.x & 0xffff0000u, x.y << 16u, x.y & 0xffff0000u));
}

/// The nearest bf16, ties to even, in the upper half; what is not a number stays so.
fn round_half(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let rounded = bits + 0x7fffu + ((bits >> 16u) & 1u);
    let odd = (bits & 0x7fffffffu) > 0x7f800000u;
    return select(rounded, bits | 0x400000u, odd);
}

fn narrow(x: vec4<f32>) -> Stored {
    return vec2<u32>(
        (round_half(x.x) >> 16u) | (round_half(x.y) & 0xffff0000u),
        (round_half(x.z) >> 16u) | (round_half(x.w) & 0xffff0000u),
    );
}
#else
alias Stored = vec4<f32>;

fn widen(x: Stored) -> vec4<f32> {
    return x;
}

fn narrow(x: vec4<f32>) -> Stored {
    return x;
}
#endif
