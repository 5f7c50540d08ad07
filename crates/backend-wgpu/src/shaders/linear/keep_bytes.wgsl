// What a kernel makes, in bytes beside: for the linears that read it when there are few tokens. Eight
// neighbours of a subgroup make 32 channels. The kernel binds bytes and bytes_scales, and includes
// byte_parts.
/// Keeps quad number `quad` of a row of CHANNELS.
fn keep_bytes(token: u32, quad: u32, v: vec4<f32>) {
    let unit = quad / 8u;
    let part = quad % 8u;
    // Of eight channels, the even ones come first.
    let other = subgroupShuffleXor(v, 1u);
    let b = byte_parts(select(vec4<f32>(v.xz, other.xz), vec4<f32>(other.yw, v.yw), part % 2u == 1u));
    let to = ((token * $((CHANNELS/32+3)/4)u + unit / 4u) * 16u + part / 4u * 4u + unit % 4u) * 4u + part % 4u;
    bytes[to] = b.high;
    bytes[to + 32u] = b.low;
    if part == 0u {
        bytes_scales[token * $(CHANNELS/32)u + unit] = byte_scales(b);
    }
}
