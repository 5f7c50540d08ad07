use super::attention::accumulators;
use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Count, Value, Work};

/// Rows of queries that one workgroup has.
const TOGETHER: u32 = 4;

/// Every row attends to every row. `x` is queries, keys, values.
pub(super) fn self_attention(
    cx: &mut MethodCompiler<'_>,
    (n_heads, head_dim): (u32, u32),
    scale: f32,
    x: &[Value],
    y: Value,
) {
    let together = if head_dim > 512 { 1 } else { TOGETHER };
    let shader = Shader::new("self_attention")
        .constant("ACC", accumulators(head_dim))
        .constant("GT", together);
    let len = cx.len(y.rows);
    Kernel::new(shader)
        .words(&[len, n_heads, head_dim, scale.to_bits()])
        .read(x[0])
        .read(x[1])
        .read(x[2])
        .write(y)
        .groups(
            cx,
            Count::tiles(y.rows, together.into(), n_heads as usize),
            Work::Pairs(y.rows, 2 * y.channels as u64),
        );
}
