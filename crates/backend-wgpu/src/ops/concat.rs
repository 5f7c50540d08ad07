use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `a` beside `b`.
pub(super) fn concat(cx: &mut MethodCompiler<'_>, x: &[Value], y: Value) {
    let kernel = Kernel::over(cx, Shader::new("concat"), y);
    kernel.words(&[x[0].channels as u32]).read(x[0]).read(x[1]).write(y).elements(cx, y);
}
