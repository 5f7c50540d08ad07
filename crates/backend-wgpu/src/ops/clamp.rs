use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `min(max(x, low), high)`.
pub(super) fn clamp(cx: &mut MethodCompiler<'_>, [low, high]: [&str; 2], x: Value, y: Value) {
    let (low, high) = (cx.vector(low), cx.vector(high));
    let kernel = Kernel::over(cx, Shader::new("clamp"), y);
    kernel.read(x).reads(low).reads(high).write(y).elements(cx, y);
}
