use lapidary_program::{Op, RopeSpec};

use super::kernel::Kernel;
use super::rows::Rows;
use crate::adapter::Abilities;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Binding, Count, Keys, Value, When, Work};

/// Buffers that the kernel binds.
const BUFFERS: u32 = 10;

/// What is done with the heads of queries, keys and values before attention.
pub(crate) struct Heads<'a> {
    /// The norms of queries, keys and values; only the last may be left out, and has no weight.
    pub norms: [Option<&'a Op>; 3],
    pub rope: &'a RopeSpec,
    pub state: &'a str,
}

/// Whether one kernel can do it.
pub(crate) fn fits(abilities: &Abilities, heads: &Heads<'_>) -> bool {
    let width = heads.rope.head_dim;
    let is_norm = |norm: Option<&Op>, weighs: bool| match norm {
        Some(Op::RmsNorm { weight, width: own, .. }) => *own == width && weight.is_some() == weighs,
        _ => false,
    };
    let [q, k, v] = heads.norms;
    abilities.max_buffers >= BUFFERS
        && width.is_multiple_of(8)
        && width <= 2048
        && heads.rope.rotated_pairs.is_multiple_of(4)
        && heads.rope.rotated_pairs > 0
        && is_norm(q, true)
        && is_norm(k, true)
        && (v.is_none() || is_norm(v, false))
}

/// Norms and turns; `x` is queries, keys and values, `table` the angles, and `y` the queries. Keys
/// and values go to their cache.
pub(crate) fn heads(
    cx: &mut MethodCompiler<'_>,
    heads: &Heads<'_>,
    x: [Value; 3],
    table: Value,
    y: Value,
    keys: Keys,
) {
    let (id, cache) = cx.cache(heads.state);
    let width = heads.rope.head_dim;
    let (mut eps, mut offsets) = ([0; 4], [0; 4]);
    let mut weights = Vec::new();
    for (i, norm) in heads.norms.iter().enumerate() {
        let Some(Op::RmsNorm { weight, eps: own, offset, .. }) = norm else { continue };
        eps[i] = own.to_bits();
        offsets[i] = offset.to_bits();
        weights.extend(weight.as_deref().map(|w| cx.vector(w)));
    }
    let len = cx.len(y.rows);
    let q_heads = y.channels as u32 / width;
    let places = cx.places(&cache, y.rows);
    let kernel = Kernel::new(shader(cx.abilities, width, cache.halves, heads.norms[2].is_some()))
        .words(&[len, q_heads, cache.n_heads as u32, heads.rope.rotated_pairs])
        .words(&eps)
        .words(&offsets)
        .read(x[0])
        .read(x[1])
        .read(x[2]);
    let kernel = weights.into_iter().fold(kernel, Kernel::reads);
    let runs = q_heads as usize + 2 * cache.n_heads;
    let when = When { rows: y.rows, least: 0, most: usize::MAX, keys };
    kernel
        .when(when)
        .read(table)
        .read(places)
        .write(y)
        .writes(Binding::Keys(id))
        .writes(Binding::Values(id))
        .groups(cx, Count::of(y.rows, runs, 1), Work::Rows(y.rows, runs as u64 * u64::from(width)));
}

/// The kernel for heads of such a width.
pub(crate) fn shader(abilities: &Abilities, width: u32, halves: bool, v_norm: bool) -> Shader {
    let rows = Rows::new(abilities, width / 2, true);
    let shader = Shader::new("heads").with("HALVES", halves).with("V_NORM", v_norm);
    rows.constants(shader.constant("HD", width))
}
