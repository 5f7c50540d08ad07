// What every kernel knows: the lengths of this call, and where it stands in the grid.

struct Call {
    lens: array<vec4<u32>, 8>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<uniform> call: Call;

/// A length of this call.
fn len_of(at: u32) -> u32 {
    return call.lens[at >> 2u][at & 3u];
}

/// The number of a workgroup in a grid that may be folded into two directions.
fn flat_group(id: vec3<u32>, n: vec3<u32>) -> u32 {
    return id.x + id.y * n.x;
}
