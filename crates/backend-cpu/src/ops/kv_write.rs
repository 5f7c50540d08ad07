use lapidary_backend::{PageTable, Span};

use crate::cache::Cache;

/// `k [T, C], v [T, C]`: each token's key and value go to its position, in the page that its
/// sequence keeps it in.
pub(crate) fn kv_write(cache: &mut Cache, k: &[f32], v: &[f32], spans: &[Span<'_>]) {
    let shape = cache.shape();
    let channels = shape.n_heads * shape.head_dim;
    let mut rows = k.chunks_exact(channels).zip(v.chunks_exact(channels));
    for span in spans {
        let table: &PageTable<'_> = &span.tables[shape.group];
        let positions = span.start as usize..span.start as usize + span.len as usize;
        for (position, (k, v)) in positions.zip(&mut rows) {
            let held = table.find(position).expect("a call was checked to hold what it writes");
            let heads = k.chunks_exact(shape.head_dim).zip(v.chunks_exact(shape.head_dim));
            for (head, (k, v)) in heads.enumerate() {
                cache.write(held, head, k, v);
            }
        }
    }
}
