use lapidary_backend_kit::Form;
use lapidary_program::LocalAttentionSpec;

use super::attention::accumulators;
use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Count, Value, Work};

/// Every row attends to itself and a few rows before it. `x` is queries, keys, values.
pub(super) fn local_attention(
    cx: &mut MethodCompiler<'_>,
    spec: &LocalAttentionSpec,
    x: &[Value],
    y: Value,
) {
    // No two rows of a call are further apart.
    let distances = spec.window.min(cx.method.max_chunk) as usize;
    let form = Form::Factors { softplus: spec.softplus, factor: spec.q_scale };
    let factors = cx.derived(&spec.per_dim_scale, form);
    let by_distance = cx.derived(&spec.relative, Form::Distances(distances));
    let len = cx.len(y.rows);
    let shader = Shader::new("local_attention").constant("ACC", accumulators(spec.head_dim));
    Kernel::new(shader)
        .words(&[len, spec.n_heads, spec.head_dim, spec.window])
        .words(&[spec.cap.to_bits(), spec.k_scale.to_bits()])
        .read(x[0])
        .read(x[1])
        .read(x[2])
        .reads(factors)
        .reads(by_distance)
        .write(y)
        .groups(
            cx,
            Count::of(y.rows, spec.n_heads as usize, 1),
            Work::Rows(y.rows, (3 * y.channels * distances) as u64),
        );
}
