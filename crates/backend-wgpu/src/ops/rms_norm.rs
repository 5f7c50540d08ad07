use lapidary_program::Op;

use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Bound, Count, Value, Work};

/// Each run of `width` channels, divided by the root of its mean square; then turned, if there is a
/// table of angles with the number of pairs that turn.
pub(crate) fn rms_norm(
    cx: &mut MethodCompiler<'_>,
    op: &Op,
    rope: Option<(Value, u32)>,
    x: Value,
    y: Value,
) {
    let Op::RmsNorm { weight, eps, offset, width } = op else {
        unreachable!("{} is no norm", op.kind())
    };
    let len = cx.len(y.rows);
    let runs = y.channels / *width as usize;
    let shader =
        Shader::new("rms_norm").with("WEIGHT", weight.is_some()).with("ROPE", rope.is_some());
    let mut kernel = Kernel::new(shader)
        .words(&[len, runs as u32, *width, eps.to_bits(), offset.to_bits()])
        .words(&[rope.map_or(0, |(_, pairs)| pairs)])
        .read(x)
        .write(y);
    let weight = weight.as_deref().map(|w| cx.vector(w));
    if let Some((table, _)) = rope {
        // Without a weight, nothing reads what stands in its place.
        kernel = kernel.reads(weight.unwrap_or(Bound::Value(x.place))).read(table);
    } else if let Some(weight) = weight {
        kernel = kernel.reads(weight);
    }
    let work = Work::Rows(y.rows, y.channels as u64);
    kernel.groups(cx, Count::of(y.rows, runs, 1), work);
}
