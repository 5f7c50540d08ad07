use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `cap · tanh(x / cap)`.
pub(super) fn soft_cap(cx: &mut MethodCompiler<'_>, cap: f32, x: Value, y: Value) {
    let kernel = Kernel::over(cx, Shader::new("soft_cap"), y);
    kernel.words(&[cap.to_bits()]).read(x).write(y).elements(cx, y);
}
