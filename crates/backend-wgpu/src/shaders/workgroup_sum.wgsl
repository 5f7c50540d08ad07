// The sum of one number per invocation of a workgroup of WG, known to all of them.
var<workgroup> partial: array<f32, WG>;

fn workgroup_sum(lane: u32, x: f32) -> f32 {
    partial[lane] = x;
    for (var n = WG / 2u; n > 0u; n /= 2u) {
        workgroupBarrier();
        if lane < n {
            partial[lane] += partial[lane + n];
        }
    }
    workgroupBarrier();
    let sum = partial[0];
    workgroupBarrier();
    return sum;
}
