use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `x · sigmoid(gate)`.
pub(super) fn sigmoid_gate(cx: &mut MethodCompiler<'_>, x: &[Value], y: Value) {
    let kernel = Kernel::over(cx, Shader::new("sigmoid_gate"), y);
    kernel.read(x[0]).read(x[1]).write(y).elements(cx, y);
}
