// The `top` largest of each row of scores [len, n], largest first, lowest number first among
// equals; chosen [len, top]. With SHARES, also what a router makes of them: softmax over the
// chosen, times a scale by number. One workgroup per row.
const WG: u32 = 64u;
struct Params {
    len: u32,
    n: u32,
    top: u32,
}
#include prelude

@group(0) @binding(2) var<storage, read> scores: array<f32>;
@group(0) @binding(3) var<storage, read_write> chosen: array<u32>;
#if SHARES
@group(0) @binding(4) var<storage, read> by_number: array<f32>;
@group(0) @binding(5) var<storage, read_write> shares: array<f32>;
#endif

const NONE: u32 = 0xffffffffu;
var<workgroup> best_score: array<f32, WG>;
var<workgroup> best_at: array<u32, WG>;

/// Whether one that is there comes before another.
fn before(a: f32, a_at: u32, b: f32, b_at: u32) -> bool {
    if a_at == NONE || b_at == NONE {
        return b_at == NONE && a_at != NONE;
    }
    return a > b || (a == b && a_at < b_at);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat_group(group, groups);
    if row >= len_of(params.len) {
        return;
    }
    var last = 0.0;
    var last_at = NONE;
    var first = 0.0;
    var sum = 0.0;
    for (var j = 0u; j < params.top; j++) {
        var own = 0.0;
        var own_at = NONE;
        for (var i = lane; i < params.n; i += WG) {
            let s = scores[row * params.n + i];
            let is_left = last_at == NONE || before(last, last_at, s, i);
            if is_left && before(s, i, own, own_at) {
                own = s;
                own_at = i;
            }
        }
        workgroupBarrier();
        best_score[lane] = own;
        best_at[lane] = own_at;
        workgroupBarrier();
        last = best_score[0];
        last_at = best_at[0];
        for (var i = 1u; i < WG; i++) {
            if before(best_score[i], best_at[i], last, last_at) {
                last = best_score[i];
                last_at = best_at[i];
            }
        }
        // Scores that are not numbers are never before another; the first numbers stand for them.
        let at = select(last_at, j, last_at == NONE);
        if lane == 0u {
            chosen[row * params.top + j] = at;
        }
#if SHARES
        if j == 0u {
            first = last;
        }
        let share = exp(last - first);
        sum += share;
        if lane == 0u {
            shares[row * params.top + j] = share * by_number[at];
        }
#endif
    }
#if SHARES
    if lane == 0u {
        for (var j = 0u; j < params.top; j++) {
            shares[row * params.top + j] /= sum;
        }
    }
#endif
}
