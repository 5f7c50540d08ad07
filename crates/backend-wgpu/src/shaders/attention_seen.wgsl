// Which keys a row of queries sees. The kernel has places, params.window and params.own_key, and
// includes kv_pages.

/// The first and the last position that a row sees; the first is larger if it sees none.
fn seen_keys(place: Place) -> vec2<i32> {
    var first = 0;
    if params.window > 0u {
        first = max(0, place.position - i32(params.window) + 1);
    }
    var last = place.position;
#if HORIZONS
    last = max(last, place.horizon);
#endif
    if params.own_key == 0u {
        last = place.position - 1;
    }
    return vec2<i32>(first, last);
}
