// embed: y [len, cols] = rows `start + stride·id` of a table as it is stored, times scale; with SOFT,
// row soft_id where soft_index is not −1. A part of the table has rows `first ..`, and makes those.
// One workgroup for WG channels of a row. The arithmetic is the host's: a product and a sum that a
// compiler made one operation of would round otherwise, so what is summed goes through shared memory.
const WG: u32 = 256u;
#include weight
struct Params {
    weight: Weight,
    len: u32,
    start: u32,
    stride: u32,
    soft_id: u32,
    /// Of this part of the table.
    first: u32,
    rows: u32,
    scale: f32,
}
#include prelude

@group(0) @binding(2) var<storage, read> ids: array<i32>;
@group(0) @binding(3) var<storage, read> matrix: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
#if SOFT
@group(0) @binding(5) var<storage, read> soft_index: array<i32>;
#endif

var<workgroup> products: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let cols = params.weight.cols;
    let parts = (cols + WG - 1u) / WG;
    let at = flat_group(group, groups);
    let is_row = at / parts < len_of(params.len);
    let t = select(0u, at / parts, is_row);
    var row = params.start + params.stride * u32(ids[t]);
#if SOFT
    row = select(row, params.soft_id, soft_index[t] >= 0);
#endif
    // A row of another part wraps around to a large number.
    row -= params.first;
    let k = at % parts * WG + lane;
    let is_own = is_row && row < params.rows && k < cols;
    if is_own {
        products[lane] = scaled_at(params.weight, row, k);
    }
    workgroupBarrier();
    if is_own {
        var x = products[lane];
        if params.weight.affine != 0u {
            x += bias_at(params.weight, row, k);
        }
        y[t * cols + k] = x * params.scale;
    }
}
