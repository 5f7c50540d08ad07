use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `x · factor`.
pub(super) fn scale(cx: &mut MethodCompiler<'_>, factor: f32, x: Value, y: Value) {
    let kernel = Kernel::over(cx, Shader::new("scale"), y);
    kernel.words(&[factor.to_bits()]).read(x).write(y).elements(cx, y);
}
