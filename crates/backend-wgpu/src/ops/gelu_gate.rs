use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `gelu_tanh(gate) · up`, with `up` from channel `start` on of a value that may be wider.
pub(crate) fn gelu_gate(
    cx: &mut MethodCompiler<'_>,
    gate: Value,
    (up, start): (Value, u32),
    y: Value,
) {
    let kernel = Kernel::over(cx, Shader::new("gelu_gate"), y);
    kernel.words(&[up.channels as u32, start]).read(gate).read(up).write(y).elements(cx, y);
}
