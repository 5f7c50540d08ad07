use std::ops::RangeInclusive;

use lapidary_program::AttentionSpec;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::linear::dot;
use crate::engine::Cache;

/// The queries of one call.
pub(crate) struct Queries<'a> {
    /// `[T, heads·head_dim]`.
    pub q: &'a [f32],
    /// `[T]`.
    pub slots: &'a [i32],
    /// `[T]`.
    pub positions: &'a [i32],
    /// `[T]`, iff the attention is bidirectional.
    pub horizons: Option<&'a [i32]>,
    /// Whether this method has written the cache before it reads it.
    ///
    /// A method that writes no key (`draft`) asks at position `p` over a cache that another method
    /// filled with `p` keys, `0 .. p`: the key at `p` itself is not there, and what stands in its
    /// place belongs to nobody. The bound is then `k < p`, whatever the horizon.
    pub own_key_is_cached: bool,
}

/// `q [T, heads·D] → [T, heads·D]`: for each head,
/// `softmax over visible k of (q · key[k] · scale)`, times the values.
///
/// Query head `h` reads KV head `h / (n_heads / n_kv_heads)`. A query that sees no key gives 0.
pub(crate) fn attention(spec: &AttentionSpec, cache: &Cache, queries: &Queries<'_>) -> Vec<f32> {
    let (n_heads, head_dim) = (spec.n_heads as usize, spec.head_dim as usize);
    let heads_per_kv = n_heads / spec.n_kv_heads as usize;
    let channels = n_heads * head_dim;
    let mut out = vec![0.0; queries.q.len()];
    out.par_chunks_exact_mut(channels).enumerate().for_each(|(t, out)| {
        let slot = queries.slots[t] as usize;
        let visible = visible_keys(spec, queries, t);
        if visible.is_empty() {
            return;
        }
        let q = &queries.q[t * channels..(t + 1) * channels];
        for (h, (q, out)) in
            q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)).enumerate()
        {
            let start = h / heads_per_kv * head_dim;
            let part = start..start + head_dim;
            let mut weights: Vec<f32> = visible
                .clone()
                .map(|k| dot(q, &cache.row(slot, k as usize).0[part.clone()]) * spec.scale)
                .collect();
            softmax(&mut weights);
            for (k, weight) in visible.clone().zip(&weights) {
                let value = &cache.row(slot, k as usize).1[part.clone()];
                for (o, v) in out.iter_mut().zip(value) {
                    *o += weight * v;
                }
            }
        }
    });
    out
}

/// The positions of the keys that token `t` sees.
fn visible_keys(spec: &AttentionSpec, queries: &Queries<'_>, t: usize) -> RangeInclusive<i64> {
    let position = i64::from(queries.positions[t]);
    let last = match queries.horizons {
        _ if !queries.own_key_is_cached => position - 1,
        Some(horizons) => position.max(i64::from(horizons[t])),
        None => position,
    };
    let first = match spec.window {
        Some(window) => (position - i64::from(window) + 1).max(0),
        None => 0,
    };
    first..=last
}

/// In place, the largest subtracted first.
pub(crate) fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for s in scores.iter_mut() {
        *s = (*s - max).exp();
        sum += *s;
    }
    for s in scores.iter_mut() {
        *s /= sum;
    }
}
