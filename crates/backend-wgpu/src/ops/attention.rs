use lapidary_program::AttentionSpec;

use super::attention_few;
use super::attention_many::ManyQueries;
use crate::compile::MethodCompiler;
use crate::step::{Keys, Value, Work};

/// Queries over a cache, in calls of such keys.
pub(crate) fn attention(
    cx: &mut MethodCompiler<'_>,
    state: &str,
    spec: &AttentionSpec,
    q: Value,
    y: Value,
    keys: Keys,
) {
    let least = attention_few::attention_few(cx, state, spec, q, y, keys);
    let (id, cache) = cx.cache(state);
    let work = Work::Keys(y.rows, 2 * y.channels as u64, cache.most_seen as u64);
    ManyQueries { spec, cache: (id, cache), q, y, work }.compile(cx, least);
}

/// Whether the end of a block counts for what a query sees.
pub(super) fn has_horizons(spec: &AttentionSpec) -> bool {
    spec.bidirectional && spec.own_key
}

/// Quads that one of a workgroup's 64 invocations holds of a head.
pub(super) fn accumulators(head_dim: u32) -> u32 {
    head_dim.div_ceil(4 * 64)
}
