use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::Value;

/// The mean of each run of rows.
pub(super) fn pool_rows(cx: &mut MethodCompiler<'_>, size: u32, x: Value, y: Value) {
    let kernel = Kernel::over(cx, Shader::new("pool_rows"), y);
    kernel.words(&[size]).read(x).write(y).elements(cx, y);
}
