use lapidary_program::AttentionSpec;

use super::attention_few;
use super::attention_many::ManyQueries;
use crate::compile::MethodCompiler;
use crate::step::{Keys, Value, Work};

/// Queries over a cache, in calls of such keys. `x` is queries, slots, positions, and perhaps
/// horizons.
pub(crate) fn attention(
    cx: &mut MethodCompiler<'_>,
    state: &str,
    spec: &AttentionSpec,
    x: &[Value],
    y: Value,
    keys: Keys,
) {
    let least = attention_few::attention_few(cx, state, spec, x, y, keys);
    let (id, cache) = cx.cache(state);
    let own_key = cx.is_written(state);
    let many = ManyQueries {
        spec,
        cache: (id, cache.capacity as u32, cache.halves),
        own_key,
        x: [x[0], x[1], x[2]],
        horizons: x.get(3).filter(|_| own_key).copied(),
        y,
        work: Work::Keys(y.rows, 2 * y.channels as u64, cache.capacity as u64),
    };
    many.compile(cx, least);
}

/// Quads that one of a workgroup's 64 invocations holds of a head.
pub(super) fn accumulators(head_dim: u32) -> u32 {
    head_dim.div_ceil(4 * 64)
}
