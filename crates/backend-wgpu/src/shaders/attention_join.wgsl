// attention: makes one of the parts of each query: parts [len, heads, SPLITS, head_dim + 2], each
// with its largest score and the sum of its weights behind its values; y [len, heads·head_dim].
struct Params {
    len: u32,
    channels: u32,
    head_dim: u32,
}
#include prelude
#include elements

@group(0) @binding(2) var<storage, read> parts: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = element(group, groups, lane);
    if i >= len_of(params.len) * params.channels {
        return;
    }
    let first = i / params.head_dim * SPLITS * (params.head_dim + 2u);
    var most = -3.0e38;
    for (var s = 0u; s < SPLITS; s++) {
        most = max(most, parts[first + s * (params.head_dim + 2u) + params.head_dim]);
    }
    var sum = 0.0;
    var total = 0.0;
    for (var s = 0u; s < SPLITS; s++) {
        let part = first + s * (params.head_dim + 2u);
        let share = exp(parts[part + params.head_dim] - most);
        sum += share * parts[part + i % params.head_dim];
        total += share * parts[part + params.head_dim + 1u];
    }
    y[i] = select(sum / total, 0.0, total == 0.0);
}
