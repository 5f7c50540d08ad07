// Which keys a row of queries sees. The kernel has positions, params.window and params.own_key, and
// with HORIZONS horizons.

/// The first and the last position that a row sees; the first is larger if it sees none.
fn seen_keys(t: u32) -> vec2<i32> {
    let position = positions[t];
    var first = 0;
    if params.window > 0u {
        first = max(0, position - i32(params.window) + 1);
    }
    var last = position;
#if HORIZONS
    last = max(last, horizons[t]);
#endif
    if params.own_key == 0u {
        last = position - 1;
    }
    return vec2<i32>(first, last);
}
