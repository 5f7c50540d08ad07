use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// Soft rows in the place of some.
pub(super) fn soft_merge(cx: &mut MethodCompiler<'_>, x: &[Value], y: Value) {
    let kernel = Kernel::over(cx, Shader::new("soft_merge"), y);
    kernel.read(x[0]).read(x[1]).read(x[2]).write(y).elements(cx, y);
}
