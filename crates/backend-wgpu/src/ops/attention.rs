use lapidary_program::AttentionSpec;

use super::attention_few;
use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Bound, Count, Value, When, Work};

/// Query heads that one workgroup has at most.
const TOGETHER: u32 = 4;

/// Queries over a cache. `x` is queries, slots, positions, and perhaps horizons.
pub(super) fn attention(
    cx: &mut MethodCompiler<'_>,
    state: &str,
    spec: &AttentionSpec,
    x: &[Value],
    y: Value,
) {
    let least = attention_few::attention_few(cx, state, spec, x, y);
    let (id, cache) = cx.cache(state);
    let per_kv = spec.n_heads / spec.n_kv_heads;
    let together = if per_kv == 1 || spec.head_dim > 512 { 1 } else { TOGETHER };
    let blocks = per_kv.div_ceil(together) * spec.n_kv_heads;
    let own_key = cx.is_written(state);
    let horizons = x.get(3).filter(|_| own_key);
    let shader = Shader::new("attention")
        .with("HALVES", cache.halves)
        .with("HORIZONS", horizons.is_some())
        .constant("ACC", accumulators(spec.head_dim))
        .constant("GT", together);
    let kernel = Kernel::new(shader).words(&[
        cx.len(y.rows),
        spec.n_heads,
        spec.head_dim,
        spec.n_kv_heads,
        cache.capacity as u32,
        spec.scale.to_bits(),
        spec.window.unwrap_or(0),
        own_key.into(),
    ]);
    let kernel = kernel.read(x[0]).read(x[1]).read(x[2]);
    let kernel = kernel.reads(Bound::Keys(id)).reads(Bound::Values(id)).write(y);
    let kernel = horizons.into_iter().fold(kernel, |kernel, h| kernel.read(*h));
    let work = Work::Keys(y.rows, 2 * y.channels as u64, cache.capacity as u64);
    let many = When { rows: y.rows, least, most: usize::MAX };
    kernel.when(many).groups(cx, Count::of(y.rows, blocks as usize, 1), work);
}

/// Quads that one of a workgroup's 64 invocations holds of a head.
pub(super) fn accumulators(head_dim: u32) -> u32 {
    head_dim.div_ceil(4 * 64)
}
