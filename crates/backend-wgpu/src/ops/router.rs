use super::kernel::Kernel;
use super::linear;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Count, Value, Work};

/// The `top_k` best experts of each row, and their shares. `y` is experts, weights.
pub(super) fn router(
    cx: &mut MethodCompiler<'_>,
    [weight, expert_scale]: [&str; 2],
    top_k: u32,
    x: Value,
    y: &[Value],
) {
    let n = cx.program.weights()[weight].rows();
    let scores = cx.scratch(x.rows, n);
    linear::plain(cx, weight, None, x, scores);
    let scale = cx.vector(expert_scale);
    let kernel = largest(cx, scores, top_k, Shader::new("largest").with("SHARES", true));
    let work = Work::Rows(x.rows, n as u64 * u64::from(top_k));
    kernel.write(y[0]).reads(scale).write(y[1]).groups(cx, Count::of(x.rows, 1, 1), work);
}

/// A kernel that finds the largest of each row; what it writes is still to be told.
pub(super) fn largest(
    cx: &mut MethodCompiler<'_>,
    scores: Value,
    top: u32,
    shader: Shader,
) -> Kernel {
    let len = cx.len(scores.rows);
    Kernel::new(shader).words(&[len, scores.channels as u32, top]).read(scores)
}
