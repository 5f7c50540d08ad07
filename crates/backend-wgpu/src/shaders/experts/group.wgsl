// Puts the uses of experts (a token with one of its choices) in the order of the experts, and counts
// them in blocks of BM, each of one expert. E experts; one workgroup.
// order [uses]; starts: where the uses of each of E experts begin, and their end; then the same of blocks.
struct Params {
    len: u32,
    top_k: u32,
}
#include prelude
@group(0) @binding(2) var<storage, read> chosen: array<u32>;
@group(0) @binding(3) var<storage, read_write> order: array<u32>;
@group(0) @binding(4) var<storage, read_write> starts: array<u32>;

const WG: u32 = 256u;
var<workgroup> places: array<atomic<u32>, E>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) lane: u32) {
    let n = len_of(params.len) * params.top_k;
    for (var e = lane; e < E; e += WG) {
        atomicStore(&places[e], 0u);
    }
    workgroupBarrier();
    for (var i = lane; i < n; i += WG) {
        atomicAdd(&places[min(chosen[i], E - 1u)], 1u);
    }
    workgroupBarrier();
    if lane == 0u {
        var at = 0u;
        var block = 0u;
        for (var e = 0u; e < E; e++) {
            let own = atomicLoad(&places[e]);
            starts[e] = at;
            starts[E + 1u + e] = block;
            atomicStore(&places[e], at);
            at += own;
            block += (own + BM - 1u) / BM;
        }
        starts[E] = at;
        starts[2u * E + 1u] = block;
    }
    workgroupBarrier();
    // Which of an expert's uses comes first depends on the moment; what is made of each does not.
    for (var i = lane; i < n; i += WG) {
        order[atomicAdd(&places[min(chosen[i], E - 1u)], 1u)] = i;
    }
}
