use lapidary_program::Op;

use super::kernel::Kernel;
use super::rows::Rows;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Binding, Count, Keys, Value, When, Work};

/// Each run of `width` channels, divided by the root of its mean square; then turned, if there is a
/// table of angles with the number of pairs that turn.
pub(crate) fn rms_norm(
    cx: &mut MethodCompiler<'_>,
    op: &Op,
    rope: Option<(Value, u32)>,
    x: Value,
    y: Value,
    keys: Keys,
) {
    let Op::RmsNorm { weight, eps, offset, width } = op else {
        unreachable!("{} is no norm", op.kind())
    };
    let len = cx.len(y.rows);
    let runs = y.channels / *width as usize;
    let pairs = rope.map_or(0, |(_, pairs)| pairs);
    let shader = norm(cx, *width, weight.is_some(), rope.map(|(_, pairs)| pairs));
    let mut kernel = Kernel::new(shader)
        .words(&[len, runs as u32, eps.to_bits(), offset.to_bits(), pairs])
        .read(x)
        .write(y);
    let weight = weight.as_deref().map(|w| cx.vector(w));
    if let Some((table, _)) = rope {
        // Without a weight, nothing reads what stands in its place.
        kernel = kernel.reads(weight.unwrap_or(Binding::Value(x.place))).read(table);
    } else if let Some(weight) = weight {
        kernel = kernel.reads(weight);
    }
    let work = Work::Rows(y.rows, y.channels as u64);
    let when = When { rows: y.rows, least: 0, most: usize::MAX, keys };
    kernel.when(when).groups(cx, Count::of(y.rows, runs, 1), work);
}

fn norm(cx: &MethodCompiler<'_>, width: u32, weight: bool, pairs: Option<u32>) -> Shader {
    // With a rope, what is taken at once must not cross the middle, nor the end of what turns.
    let whole = match pairs {
        Some(pairs) => width.is_multiple_of(8) && pairs.is_multiple_of(4),
        None => width.is_multiple_of(4),
    };
    let part = if pairs.is_some() { width / 2 } else { width };
    let rows = Rows::new(cx.abilities, part, whole);
    let shader = Shader::new("rms_norm").with("WEIGHT", weight).with("ROPE", pairs.is_some());
    let parts = 1 + u32::from(pairs.is_some());
    rows.constants(shader.constant("WIDTH", width).constant("PARTS", parts))
}
