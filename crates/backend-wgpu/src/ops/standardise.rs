use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `(x − bias) · scale`.
pub(super) fn standardise(
    cx: &mut MethodCompiler<'_>,
    [bias, scale]: [&str; 2],
    x: Value,
    y: Value,
) {
    let (bias, scale) = (cx.vector(bias), cx.vector(scale));
    let kernel = Kernel::over(cx, Shader::new("standardise"), y);
    kernel.read(x).reads(bias).reads(scale).write(y).elements(cx, y);
}
