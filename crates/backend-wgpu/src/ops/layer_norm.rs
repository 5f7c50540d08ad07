use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Count, Value, Work};

/// Each run of `width` channels, without its mean and divided by its spread.
pub(super) fn layer_norm(
    cx: &mut MethodCompiler<'_>,
    (weight, bias): (&str, Option<&str>),
    eps: f32,
    width: u32,
    x: Value,
    y: Value,
) {
    let len = cx.len(y.rows);
    let runs = y.channels / width as usize;
    let weight = cx.vector(weight);
    let mut kernel = Kernel::new(Shader::new("layer_norm").with("BIAS", bias.is_some()))
        .words(&[len, runs as u32, width, eps.to_bits()])
        .read(x)
        .reads(weight)
        .write(y);
    if let Some(bias) = bias {
        kernel = kernel.reads(cx.vector(bias));
    }
    kernel.groups(cx, Count::of(y.rows, runs, 1), Work::Rows(y.rows, y.channels as u64));
}
