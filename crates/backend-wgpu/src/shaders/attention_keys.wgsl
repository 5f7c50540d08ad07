// How `splits` workgroups share the keys that a row of queries sees. The kernel has params.splits and
// what `attention_seen` asks for.
#include attention_seen

/// Where the first tile of 32 keys begins: a tile is never in two pages.
fn first_tile(seen: vec2<i32>) -> i32 {
    return seen.x & ~31;
}

/// Keys from there to the last.
fn n_keys(seen: vec2<i32>) -> i32 {
    return select(0, seen.y - first_tile(seen) + 1, seen.x <= seen.y);
}

/// Keys of one workgroup, in whole tiles.
fn share_of(seen: vec2<i32>) -> i32 {
    let tiles = (n_keys(seen) + 31) / 32;
    let n = i32(params.splits);
    return (tiles + n - 1) / n * 32;
}
