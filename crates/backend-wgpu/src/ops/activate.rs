use lapidary_program::Activation;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `f(x)`.
pub(super) fn activate(cx: &mut MethodCompiler<'_>, function: Activation, x: Value, y: Value) {
    let switch = match function {
        Activation::GeluTanh => "GELU",
        Activation::Silu => "SILU",
        Activation::Relu => "RELU",
    };
    let kernel = Kernel::over(cx, Shader::new("activate").with(switch, true), y);
    kernel.read(x).write(y).elements(cx, y);
}
