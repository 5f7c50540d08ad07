// x in bytes as `rows_to_bytes` makes them (MODE 1), in the memory of a workgroup of Q·NT, for TOK tokens
// of U units. Eight neighbours have a unit; subgroups have at least eight.
const UNIT_QUADS = $((U+3)/4)u;
var<workgroup> local_bytes: array<vec4<u32>, $(TOK*((U+3)/4)*16)>;
/// Scale; scale · Σ of the rounded numbers of the first half, of the second, and of both.
var<workgroup> local_scales: array<vec4<f32>, $(TOK*U)>;

/// The words of four neighbours, whole for the first of them.
fn four(w: u32) -> vec4<u32> {
    return vec4<u32>(w, subgroupShuffleXor(w, 1u), subgroupShuffleXor(w, 2u), subgroupShuffleXor(w, 3u));
}

fn make_bytes(thread: u32, len: u32) {
    // All is asked for before the first is needed.
#for I 0 (TOK*((U+3)/4)*32+Q*NT-1)/(Q*NT)
    let i_$(I) = thread + $(I*Q*NT)u;
    let token_$(I) = i_$(I) / (UNIT_QUADS * 32u);
    let unit_$(I) = i_$(I) / 8u % (UNIT_QUADS * 4u);
    // The columns of two invocations, of which one takes the even ones.
    let column_$(I) = unit_$(I) * 32u + thread % 8u / 2u * 8u;
    let start_$(I) = (token_$(I) * params.cols + column_$(I)) / 4u;
    var a_$(I) = vec4<f32>();
    var b_$(I) = vec4<f32>();
    if token_$(I) < len && column_$(I) < params.cols {
        a_$(I) = x[start_$(I)];
        if column_$(I) + 4u < params.cols {
            b_$(I) = x[start_$(I) + 1u];
        }
    }
#endfor
#for I 0 (TOK*((U+3)/4)*32+Q*NT-1)/(Q*NT)
    if i_$(I) < $(TOK*32)u * UNIT_QUADS {
        keep_local(thread % 8u, token_$(I), unit_$(I), a_$(I), b_$(I));
    }
#endfor
}

fn keep_local(part: u32, token: u32, unit: u32, a: vec4<f32>, b: vec4<f32>) {
    let parts = byte_parts(select(vec4<f32>(a.xz, b.xz), vec4<f32>(a.yw, b.yw), part % 2u == 1u));
    let highs = four(parts.high);
    let lows = four(parts.low);
    if part % 4u == 0u {
        let to = (token * UNIT_QUADS + unit / 4u) * 16u + part + unit % 4u;
        local_bytes[to] = highs;
        local_bytes[to + 8u] = lows;
    }
    if part == 0u && unit < $(U)u {
        local_scales[token * $(U)u + unit] = byte_scales(parts);
    }
}
