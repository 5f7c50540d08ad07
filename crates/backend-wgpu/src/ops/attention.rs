use lapidary_program::{AttentionSpec, Dim};

use super::attention_many::ManyQueries;
use super::kernel::Kernel;
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Bound, Count, Value, When, Work};

/// Rows up to which the keys of a query are shared among workgroups.
const SPLIT_ROWS: usize = 8;
/// Workgroups that then share them.
const SPLITS: u32 = 16;
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
    let (id, cache) = cx.cache(state);
    let per_kv = spec.n_heads / spec.n_kv_heads;
    let together = if per_kv == 1 || spec.head_dim > 512 { 1 } else { TOGETHER };
    let blocks = per_kv.div_ceil(together) * spec.n_kv_heads;
    let own_key = cx.is_written(state);
    let horizons = x.get(3).filter(|_| own_key);
    let words = [
        cx.len(y.rows),
        spec.n_heads,
        spec.head_dim,
        spec.n_kv_heads,
        cache.capacity as u32,
        spec.scale.to_bits(),
        spec.window.unwrap_or(0),
        own_key.into(),
    ];
    let kernel = |made: Value| {
        let shader = Shader::new("attention")
            .with("HALVES", cache.halves)
            .with("HORIZONS", horizons.is_some())
            .with("SPLIT", true)
            .constant("ACC", accumulators(spec.head_dim))
            .constant("GT", together)
            .constant("SPLITS", SPLITS);
        let kernel = Kernel::new(shader).words(&words).read(x[0]).read(x[1]).read(x[2]);
        let kernel = kernel.reads(Bound::Keys(id)).reads(Bound::Values(id)).write(made);
        horizons.into_iter().fold(kernel, |kernel, h| kernel.read(*h))
    };
    let most = cache.capacity as u64;
    let work = Work::Keys(y.rows, 2 * y.channels as u64, most);
    let few = When { rows: y.rows, least: 0, most: SPLIT_ROWS };
    let wide = (spec.n_heads * SPLITS * (spec.head_dim + 2)) as usize;
    let parts = cx.scratch(Dim::Fixed(SPLIT_ROWS as u64), wide);
    let groups = Count::of(y.rows, (blocks * SPLITS) as usize, 1);
    kernel(parts).when(few).groups(cx, groups, work);
    let join = Kernel::over(cx, Shader::new("attention_join").constant("SPLITS", SPLITS), y);
    join.words(&[spec.head_dim]).read(parts).write(y).when(few).elements(cx, y);
    let many = ManyQueries {
        spec,
        cache: (id, cache.capacity as u32, cache.halves),
        own_key,
        x: [x[0], x[1], x[2]],
        horizons: horizons.copied(),
        y,
        work,
    };
    many.compile(cx, SPLIT_ROWS + 1);
}

/// Quads that one of a workgroup's 64 invocations holds of a head.
pub(super) fn accumulators(head_dim: u32) -> u32 {
    head_dim.div_ceil(4 * 64)
}
