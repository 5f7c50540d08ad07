// A weight as it is stored: all parts in one buffer, any encoding, one number at a time.
// `matrix` is bound by the kernel. Parts begin at bytes that `Weight` tells, rows where they may.

struct Weight {
    cols: u32,
    /// Codes of 2 to 8 bits; 0 for numbers that are not quantised.
    bits: u32,
    /// Bytes of a row of codes or numbers.
    row_bytes: u32,
    /// 0 for f32, 1 for f16, 2 for bf16: the numbers, or scales and biases.
    kind: u32,
    group: u32,
    offset: u32,
    affine: u32,
    /// Groups under one float; 0 where scales are floats themselves.
    per: u32,
    /// Whether the bytes under a float have a sign.
    signed_bytes: u32,
    scale_at: u32,
    bias_at: u32,
    super_scale_at: u32,
    super_bias_at: u32,
    // Uniform buffers want structs of whole rows of 16 bytes.
    pad0: u32,
    pad1: u32,
    pad2: u32,
}

fn byte_at(at: u32) -> u32 {
    return (matrix[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}

/// Number `i` of a kind, from a byte on that is a multiple of its size.
fn float_at(kind: u32, start: u32, i: u32) -> f32 {
    if kind == 0u {
        return bitcast<f32>(matrix[(start >> 2u) + i]);
    }
    let at = start + 2u * i;
    let word = matrix[at >> 2u];
    let half = select(word & 0xffffu, word >> 16u, (at & 2u) != 0u);
    if kind == 1u {
        return unpack2x16float(half).x;
    }
    return bitcast<f32>(half << 16u);
}

/// The scale or bias of a group, nesting resolved.
fn factor_at(w: Weight, at: u32, super_at: u32, row: u32, g: u32) -> f32 {
    let groups = w.cols / w.group;
    if w.per == 0u {
        return float_at(w.kind, at, row * groups + g);
    }
    let byte = byte_at(at + row * groups + g);
    let own = select(f32(byte), f32(i32(byte << 24u) >> 24u), w.signed_bytes != 0u);
    return own * float_at(w.kind, super_at, row * (groups / w.per) + g / w.per);
}

/// The number at a row and a column, but for its bias.
fn scaled_at(w: Weight, row: u32, k: u32) -> f32 {
    if w.bits == 0u {
        return float_at(w.kind, row * w.row_bytes, k);
    }
    let bit = k * w.bits;
    let byte = row * w.row_bytes + (bit >> 3u);
    // A code lies in one byte or two; the second is read only where it is needed.
    var word = byte_at(byte);
    if (bit & 7u) + w.bits > 8u {
        word |= byte_at(byte + 1u) << 8u;
    }
    let code = (word >> (bit & 7u)) & ((1u << w.bits) - 1u);
    let scale = factor_at(w, w.scale_at, w.super_scale_at, row, k / w.group);
    return f32(i32(code) - i32(w.offset)) * scale;
}

/// The bias of a row and a column of an affine weight.
fn bias_at(w: Weight, row: u32, k: u32) -> f32 {
    return factor_at(w, w.bias_at, w.super_bias_at, row, k / w.group);
}

/// The number at a row and a column.
fn weight_at(w: Weight, row: u32, k: u32) -> f32 {
    let scaled = scaled_at(w, row, k);
    if w.affine == 0u {
        return scaled;
    }
    return scaled + bias_at(w, row, k);
}
