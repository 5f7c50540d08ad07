use lapidary_backend_kit::Form;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// Each channel by itself, over the rows before.
pub(super) fn causal_conv1d(cx: &mut MethodCompiler<'_>, weight: &str, x: Value, y: Value) {
    let taps = cx.program.weights()[weight].cols() as u32;
    let weight = cx.derived(weight, Form::Transposed);
    let kernel = Kernel::over(cx, Shader::new("causal_conv1d"), y);
    kernel.words(&[taps]).read(x).reads(weight).write(y).elements(cx, y);
}
