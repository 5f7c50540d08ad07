use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Binding, Count, Value, Work};
use crate::weights::{RawLayout, ShardId};

/// Channels of a row that a workgroup makes: `WG` in the kernel.
const WORKGROUP: usize = 256;

/// Which rows of a table: `start + stride·id`, times `scale`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub scale: f32,
    pub start: u32,
    pub stride: u32,
}

/// Rows of a table on the device, by the ids of `x[0]`; where `x[1]` has a soft row, that of
/// `soft_id`. The numbers are those that the host would make, to the bit.
pub(super) fn embed(
    cx: &mut MethodCompiler<'_>,
    table: &str,
    rows: Rows,
    soft_id: Option<u32>,
    x: &[Value],
    y: Value,
) {
    let decl = &cx.program.weights()[table];
    let matrix = cx.matrix(table, 1);
    let len = cx.len(y.rows);
    let soft = soft_id.zip(x.get(1).copied());
    for (shard, part) in cx.shards(matrix).into_iter().enumerate() {
        let shader = Shader::new("embed").with("SOFT", soft.is_some());
        let mut kernel = Kernel::new(shader)
            .words(&RawLayout::new(decl, part.len()).words(decl))
            .words(&[len, rows.start, rows.stride, soft.map_or(0, |(id, _)| id)])
            .words(&[part.start as u32, part.len() as u32, rows.scale.to_bits()])
            .read(x[0])
            .reads(Binding::Shard(ShardId { matrix: matrix.0, shard }))
            .write(y);
        if let Some((_, index)) = soft {
            kernel = kernel.read(index);
        }
        let groups = Count::of(y.rows, y.channels.div_ceil(WORKGROUP), 1);
        kernel.groups(cx, groups, Work::Rows(y.rows, y.channels as u64));
    }
}
