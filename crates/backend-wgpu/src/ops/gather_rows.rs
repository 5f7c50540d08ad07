use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// Rows by number.
pub(super) fn gather_rows(cx: &mut MethodCompiler<'_>, x: &[Value], y: Value) {
    let kernel = Kernel::over(cx, Shader::new("gather_rows"), y);
    kernel.read(x[0]).read(x[1]).write(y).elements(cx, y);
}
