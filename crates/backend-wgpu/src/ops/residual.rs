use lapidary_program::Op;

use super::kernel::Kernel;
use super::rows::Rows;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Binding, Count, Value, When, Work};

/// A norm of whole rows.
struct Norm {
    weight: Option<Binding>,
    eps: f32,
    offset: f32,
}

/// `y = (x + norm(a)) · s`, and `z = norm(y)`; norms and factor are the ops given.
pub(crate) fn residual(
    cx: &mut MethodCompiler<'_>,
    [pre, scale, post]: [Option<&Op>; 3],
    [x, a]: [Value; 2],
    y: Value,
    z: Option<Value>,
) {
    let (pre, post) = (pre.and_then(|op| norm(cx, op)), post.and_then(|op| norm(cx, op)));
    let scale = scale.and_then(|op| match op {
        Op::ScaleBy { weight } => {
            let width = cx.program.weights()[weight].n_elements() as u32;
            Some((cx.vector(weight), width))
        }
        _ => None,
    });
    let weighs = |norm: &Option<Norm>| norm.as_ref().is_some_and(|n| n.weight.is_some());
    let channels = y.channels as u32;
    let rows = Rows::new(cx.abilities, channels, channels.is_multiple_of(4));
    let shader = |bytes: bool| {
        let shader = Shader::new("residual")
            .with("PRE", pre.is_some())
            .with("PRE_WEIGHT", weighs(&pre))
            .with("SCALE", scale.is_some())
            .with("SCALAR", scale.is_some_and(|(_, width)| width == 1))
            .with("POST", post.is_some())
            .with("POST_WEIGHT", weighs(&post))
            .with("BYTES", bytes)
            .constant("CHANNELS", channels);
        rows.constants(shader)
    };
    let numbers = |norm: &Option<Norm>| {
        norm.as_ref().map_or([0; 2], |n| [n.eps.to_bits(), n.offset.to_bits()])
    };
    let len = cx.len(y.rows);
    // What is not there is never read: any buffer may stand in its place.
    let none = Binding::Value(x.place);
    let weight = |norm: &Option<Norm>| norm.as_ref().and_then(|n| n.weight).unwrap_or(none);
    let kernel = |bytes: Option<[Value; 2]>| {
        let kernel = Kernel::new(shader(bytes.is_some()))
            .words(&[len])
            .words(&numbers(&pre))
            .words(&numbers(&post))
            .words(&[scale.map_or(1, |(_, width)| width)])
            .read(x)
            .read(a)
            .write(y)
            .reads(weight(&pre))
            .reads(scale.map_or(none, |(factor, _)| factor))
            .reads(weight(&post));
        z.into_iter().chain(bytes.into_iter().flatten()).fold(kernel, Kernel::write)
    };
    let (count, work) = (Count::of(y.rows, 1, 1), Work::Rows(y.rows, 4 * y.channels as u64));
    let mut least = 0;
    if let Some(bytes) = z.and_then(|z| cx.bytes(z)) {
        let most = bytes[0].most_rows();
        kernel(Some(bytes)).when(When::rows(y.rows, least, most)).groups(cx, count, work);
        least = most + 1;
    }
    kernel(None).when(When::rows(y.rows, least, usize::MAX)).groups(cx, count, work);
}

fn norm(cx: &mut MethodCompiler<'_>, op: &Op) -> Option<Norm> {
    let Op::RmsNorm { weight, eps, offset, .. } = op else { return None };
    let weight = weight.as_deref().map(|w| cx.vector(w));
    Some(Norm { weight, eps: *eps, offset: *offset })
}
