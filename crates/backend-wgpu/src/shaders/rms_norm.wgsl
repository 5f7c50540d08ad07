// rms_norm: each run of WIDTH channels becomes x / sqrt(mean(x²) + eps) · (offset + w).
// x, y [len, channels]; weight [WIDTH] with WEIGHT. With ROPE, pairs i and i + WIDTH/2 of a run then
// turn by table [len, cosines · sines]. One workgroup per run, N vectors of V channels for each
// invocation, or N of each half.
struct Params {
    len: u32,
    runs: u32,
    eps: f32,
    offset: f32,
    /// Pairs that turn.
    pairs: u32,
}
#include prelude
#include vectors
#include workgroup_sum

@group(0) @binding(2) var<storage, read> x: array<Vector>;
@group(0) @binding(3) var<storage, read_write> y: array<Vector>;
#if WEIGHT
@group(0) @binding(4) var<storage, read> weight: array<Vector>;
#endif
#if ROPE
@group(0) @binding(5) var<storage, read> table: array<Vector>;
#endif

// Vectors of a part: there are PARTS in a run, with ROPE two halves.
const PART = $(WIDTH/V/PARTS)u;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let run = flat_group(group, groups);
    if run >= len_of(params.len) * params.runs {
        return;
    }
    var squares = 0.0;
#for I 0 N
    // Beyond the end, the last is read again and nothing is done with it.
    let i_$(I) = min(lane + $(I*WG)u, PART - 1u);
    let in_$(I) = lane + $(I*WG)u < PART;
#for P 0 PARTS
    let at_$(I)_$(P) = run * $(PARTS)u * PART + $(P)u * PART + i_$(I);
    var x_$(I)_$(P) = x[at_$(I)_$(P)];
#if WEIGHT
    let weight_$(I)_$(P) = params.offset + weight[$(P)u * PART + i_$(I)];
#endif
    squares += select(0.0, sum_of(x_$(I)_$(P) * x_$(I)_$(P)), in_$(I));
#endfor
#if ROPE
    let turns_$(I) = i_$(I) * $(V)u < params.pairs;
    let angle_$(I) = run / params.runs * 2u * params.pairs / $(V)u + select(0u, i_$(I), turns_$(I));
    let cosine_$(I) = table[angle_$(I)];
    let sine_$(I) = table[angle_$(I) + params.pairs / $(V)u];
#endif
#endfor
    let root = sqrt(workgroup_sum(lane, squares) / $(WIDTH).0 + params.eps);
#for I 0 N
#for P 0 PARTS
    x_$(I)_$(P) /= root;
#if WEIGHT
    x_$(I)_$(P) *= weight_$(I)_$(P);
#endif
#endfor
    if in_$(I) {
#if ROPE
        if turns_$(I) {
            y[at_$(I)_0] = x_$(I)_0 * cosine_$(I) - x_$(I)_1 * sine_$(I);
            y[at_$(I)_1] = x_$(I)_1 * cosine_$(I) + x_$(I)_0 * sine_$(I);
        } else {
            y[at_$(I)_0] = x_$(I)_0;
            y[at_$(I)_1] = x_$(I)_1;
        }
#else
        y[at_$(I)_0] = x_$(I)_0;
#endif
    }
#endfor
}
