// The logarithm of the sum of the exponentials of each row. FIRST makes the largest number and the sum
// of each stretch of a row, from floats; else one workgroup makes one number of a row's stretches. With
// MASK, numbers whose bit is 0 do not count.
const WG: u32 = 256u;
const STRETCH: u32 = 2048u;
const LOW: f32 = -3.4e38;
struct Params {
    n: u32,
    mask_words: u32,
}
#include prelude

#if FIRST
@group(0) @binding(2) var<storage, read> numbers: array<f32>;
@group(0) @binding(3) var<storage, read_write> parts: array<vec2<f32>>;
#if MASK
@group(0) @binding(4) var<storage, read> masks: array<u32>;
#endif
#else
@group(0) @binding(2) var<storage, read> parts: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> made: array<f32>;
#endif

var<workgroup> found: array<vec2<f32>, WG>;

/// Two sums of exponentials less their largest numbers, as one.
fn joined(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let high = max(a.x, b.x);
    return vec2<f32>(high, a.y * exp(a.x - high) + b.y * exp(b.x - high));
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.y;
    var own = vec2<f32>(LOW, 0.0);
#if FIRST
    let end = min(params.n, (group.x + 1u) * STRETCH);
    for (var i = group.x * STRETCH + lane; i < end; i += WG) {
#if MASK
        if ((masks[row * params.mask_words + i / 32u] >> (i % 32u)) & 1u) == 0u {
            continue;
        }
#endif
        own = joined(own, vec2<f32>(numbers[row * params.n + i], 1.0));
    }
#else
    for (var i = lane; i < params.n; i += WG) {
        own = joined(own, parts[row * params.n + i]);
    }
#endif
    found[lane] = own;
    for (var half = WG / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            own = joined(own, found[lane + half]);
            found[lane] = own;
        }
    }
    if lane == 0u {
#if FIRST
        parts[row * groups.x + group.x] = own;
#else
        // A row of which nothing counts has no sum; its logarithm is made without an infinity that a
        // compiler may not know.
        made[row] = select(own.x + log(own.y), bitcast<f32>(0xff800000u + params.mask_words), own.y == 0.0);
#endif
    }
}
