// How `splits` workgroups share the keys that a row of queries sees. The kernel has params.splits and
// what `attention_seen` asks for.
#include attention_seen

/// Keys of one workgroup, in whole tiles of 32.
fn share_of(seen: vec2<i32>) -> i32 {
    let tiles = (max(0, seen.y - seen.x + 1) + 31) / 32;
    let n = i32(params.splits);
    return (tiles + n - 1) / n * 32;
}
