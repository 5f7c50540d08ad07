use super::kernel::Kernel;
use super::{linear, router};
use crate::compile::MethodCompiler;
use crate::shader::Shader;
use crate::step::{Binding, Count, Value, Work};
use crate::weights::{RawLayout, ShardId};

/// Logits of the tokens under the `top` best centroids; the others are below all of those.
pub(super) fn centroid_head(
    cx: &mut MethodCompiler<'_>,
    [centroids, ordering, embedding]: [&str; 3],
    top: u32,
    x: Value,
    y: Value,
) {
    let n_centroids = cx.program.weights()[centroids].rows();
    let per = (y.channels / n_centroids) as u32;
    let scores = cx.scratch(x.rows, n_centroids);
    linear::plain(cx, centroids, None, x, scores);
    let chosen = cx.scratch(x.rows, top as usize);
    let kernel = router::largest(cx, scores, top, Shader::new("largest"));
    let work = Work::Rows(x.rows, n_centroids as u64 * u64::from(top));
    kernel.write(chosen).groups(cx, Count::of(x.rows, 1, 1), work);

    let ordering = cx.token_ids(ordering);
    let wide = (top * per) as usize;
    let found = cx.scratch(x.rows, wide);
    let len = cx.len(x.rows);
    let matrix = cx.matrix(embedding, 1);
    let decl = &cx.program.weights()[embedding];
    for (shard, rows) in cx.shards(matrix).into_iter().enumerate() {
        Kernel::new(Shader::new("centroid_logits"))
            .words(&RawLayout::new(decl, rows.len()).words(decl))
            .words(&[len, top, per, rows.start as u32, rows.len() as u32])
            .read(x)
            .read(chosen)
            .reads(ordering)
            .reads(Binding::Shard(ShardId { matrix: matrix.0, shard }))
            .write(found)
            .groups(cx, Count::of(x.rows, wide, 1), Work::Rows(x.rows, (wide * x.channels) as u64));
    }
    Kernel::new(Shader::new("centroid_spread"))
        .words(&[len, top, per, y.channels as u32])
        .read(found)
        .read(chosen)
        .reads(ordering)
        .write(y)
        .groups(cx, Count::of(y.rows, 1, 1), Work::Rows(y.rows, y.channels as u64));
}
