use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// Channels from `start` on.
pub(super) fn slice(cx: &mut MethodCompiler<'_>, start: u32, x: Value, y: Value) {
    let kernel = Kernel::over(cx, Shader::new("slice"), y);
    kernel.words(&[x.channels as u32, start]).read(x).write(y).elements(cx, y);
}
