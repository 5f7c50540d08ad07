use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// `x · w`.
pub(super) fn scale_by(cx: &mut MethodCompiler<'_>, weight: &str, x: Value, y: Value) {
    let width = cx.program.weights()[weight].n_elements() as u32;
    let weight = cx.vector(weight);
    let kernel = Kernel::over(cx, Shader::new("scale_by"), y);
    kernel.words(&[width]).read(x).reads(weight).write(y).elements(cx, y);
}
