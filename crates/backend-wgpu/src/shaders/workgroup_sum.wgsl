// The sum of one number per invocation of a workgroup of WG, known to all of them.
// SG: the size of a subgroup, if it is known and may be used.
#if SG && SG == WG
fn workgroup_sum(lane: u32, x: f32) -> f32 {
    return subgroupAdd(x);
}
#endif
#if SG && SG < WG
var<workgroup> partial: array<f32, $(WG/SG)>;

fn workgroup_sum(lane: u32, x: f32) -> f32 {
    let own = subgroupAdd(x);
    if lane % $(SG)u == 0u {
        partial[lane / $(SG)u] = own;
    }
    workgroupBarrier();
#if WG/SG > SG
    var sum = 0.0;
#for I 0 WG/SG
    sum += partial[$(I)];
#endfor
#else
    // Each subgroup adds what all of them have found: a few steps instead of one after another.
    let found = partial[min(lane % $(SG)u, $(WG/SG-1)u)];
    let sum = subgroupAdd(select(0.0, found, lane % $(SG)u < $(WG/SG)u));
#endif
    workgroupBarrier();
    return sum;
}
#endif
#if !SG
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
#endif
