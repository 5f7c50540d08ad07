// No op: multiplies and adds numbers from a buffer of 4096, to learn how fast a GPU is.
struct Params {
    rounds: u32,
}
#include prelude

@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = group.x * 256u + lane;
    var sum = vec4<f32>(f32(at));
    for (var i = 0u; i < params.rounds; i++) {
        let x = y[(at + i) & 4095u];
        sum = sum * x + vec4<f32>(0.5, 0.25, 0.125, 0.0625);
    }
    if sum.x + sum.y + sum.z + sum.w == 12345.0 {
        y[at & 4095u] = sum.x;
    }
}
