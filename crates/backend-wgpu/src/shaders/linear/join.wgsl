// Adds what the workgroups of `coop` found that share the columns: partial [SPLIT][len][rows of W].
struct Params {
    len: u32,
    tiles: u32,
    pad0: u32,
    pad1: u32,
    outs: array<vec4<u32>, 3>,
}
#include prelude
@group(0) @binding(2) var<storage, read> partial: array<f32>;
@group(0) @binding(3) var<storage, read> rows: array<f32>;
#for O 0 OUTS
@group(0) @binding($(4+O)) var<storage, read_write> y_$(O): array<f32>;
#endfor
#if BIAS
@group(0) @binding($(4+OUTS)) var<storage, read> bias: array<f32>;
#endif
#include linear/store

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = flat_group(group, groups) * 256u + thread;
    let wide = params.tiles * 8u;
    let len = len_of(params.len);
    if at >= len * wide {
        return;
    }
    var sum = 0.0;
#for S 0 SPLIT
    sum += partial[at + $(S)u * len * wide];
#endfor
    let row = at % wide;
    store(at / wide, row, sum * rows[row]);
}
