use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `a + b`.
pub(super) fn add(cx: &mut MethodCompiler<'_>, x: &[Value], y: Value) {
    let kernel = Kernel::over(cx, Shader::new("add"), y);
    kernel.read(x[0]).read(x[1]).write(y).elements(cx, y);
}
