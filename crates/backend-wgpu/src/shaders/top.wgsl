// The K largest of each stretch of a row, largest first, lowest number first among equals, as pairs
// of order and number. FIRST reads a row of floats, others what was found in stretches before. With
// MASK, numbers whose bit is 0 do not count.
// Orders are bits of floats made so that larger ones are larger integers: then no compiler can take
// liberties with what is not finite, which comes before all else. One workgroup per stretch and row.
const WG: u32 = 256u;
const STRETCH: u32 = 2048u;
struct Params {
    n: u32,
    mask_words: u32,
}
#include prelude

#if FIRST
@group(0) @binding(2) var<storage, read> numbers: array<u32>;
#else
@group(0) @binding(2) var<storage, read> found: array<vec2<u32>>;
#endif
@group(0) @binding(3) var<storage, read_write> best: array<vec2<u32>>;
#if MASK
@group(0) @binding(4) var<storage, read> masks: array<u32>;
#endif

const NONE: vec2<u32> = vec2<u32>(0u, 0xffffffffu);
#if K == 1
var<workgroup> orders: array<u32, WG>;
var<workgroup> places: array<u32, WG>;
#else
var<workgroup> orders: array<u32, STRETCH>;
var<workgroup> places: array<u32, STRETCH>;
#endif

fn order_of(bits: u32) -> u32 {
    if (bits & 0x7f800000u) == 0x7f800000u {
        return 0xffffffffu;
    }
    // Minus zero is zero.
    if bits == 0x80000000u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn entry(row: u32, i: u32) -> vec2<u32> {
    if i >= params.n {
        return NONE;
    }
#if MASK
    if ((masks[row * params.mask_words + i / 32u] >> (i % 32u)) & 1u) == 0u {
        return NONE;
    }
#endif
#if FIRST
    return vec2<u32>(order_of(numbers[row * params.n + i]), i);
#else
    return found[row * params.n + i];
#endif
}

fn before(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

fn shared_entry(i: u32) -> vec2<u32> {
    return vec2<u32>(orders[i], places[i]);
}

fn put(i: u32, e: vec2<u32>) {
    orders[i] = e.x;
    places[i] = e.y;
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group.y;
    let first = group.x * STRETCH;
    let out = (row * groups.x + group.x) * K;
#if K == 1
    var own = NONE;
    for (var i = lane; i < STRETCH; i += WG) {
        let e = entry(row, first + i);
        if before(e, own) {
            own = e;
        }
    }
    put(lane, own);
    for (var half = WG / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if lane < half {
            let other = shared_entry(lane + half);
            if before(other, own) {
                own = other;
                put(lane, own);
            }
        }
    }
    if lane == 0u {
        best[out] = own;
    }
#else
    for (var i = lane; i < STRETCH; i += WG) {
        put(i, entry(row, first + i));
    }
    // Bitonic: runs of `size` are sorted, every other one the other way round.
    for (var size = 2u; size <= STRETCH; size <<= 1u) {
        for (var apart = size >> 1u; apart > 0u; apart >>= 1u) {
            workgroupBarrier();
            for (var pair = lane; pair < STRETCH / 2u; pair += WG) {
                let i = 2u * pair - (pair & (apart - 1u));
                let a = shared_entry(i);
                let b = shared_entry(i + apart);
                if before(b, a) == ((i & size) == 0u) {
                    put(i, b);
                    put(i + apart, a);
                }
            }
        }
    }
    workgroupBarrier();
    for (var i = lane; i < K; i += WG) {
        best[out + i] = shared_entry(i);
    }
#endif
}
