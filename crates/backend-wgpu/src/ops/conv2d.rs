use lapidary_backend_kit::Form;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// A 3×3 convolution of stride 2.
pub(super) fn conv2d(cx: &mut MethodCompiler<'_>, weight: &str, width: u32, x: Value, y: Value) {
    let shape = &cx.program.weights()[weight].shape;
    let [n_out, n_in] = [shape[0] as u32, shape[1] as u32];
    let weight = cx.derived(weight, Form::Kernel);
    let x_len = cx.len(x.rows);
    let kernel = Kernel::over(cx, Shader::new("conv2d"), y);
    kernel.words(&[x_len, width, n_in, n_out]).read(x).reads(weight).write(y).elements(cx, y);
}
