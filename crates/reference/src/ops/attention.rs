use std::ops::RangeInclusive;

use lapidary_program::AttentionSpec;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::linear::dot;
use crate::engine::{Cache, Places};

/// `q [T, heads·D] → [T, heads·D]`: for each head,
/// `softmax over visible k of (q · key[k] · scale)`, times the values.
///
/// Query head `h` reads KV head `h / (n_heads / n_kv_heads)`. A query that sees no key gives 0.
pub(crate) fn attention(
    spec: &AttentionSpec,
    cache: &Cache,
    q: &[f32],
    places: &Places<'_>,
) -> Vec<f32> {
    let (n_heads, head_dim) = (spec.n_heads as usize, spec.head_dim as usize);
    let heads_per_kv = n_heads / spec.n_kv_heads as usize;
    let channels = n_heads * head_dim;
    let mut out = vec![0.0; q.len()];
    out.par_chunks_exact_mut(channels).enumerate().for_each(|(t, out)| {
        let span = places.span(t);
        let visible = visible_keys(spec, places, t);
        if visible.is_empty() {
            return;
        }
        let q = &q[t * channels..(t + 1) * channels];
        for (h, (q, out)) in
            q.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)).enumerate()
        {
            let start = h / heads_per_kv * head_dim;
            let part = start..start + head_dim;
            let mut weights: Vec<f32> = visible
                .clone()
                .map(|k| dot(q, &cache.row(span, k as usize).0[part.clone()]) * spec.scale)
                .collect();
            softmax(&mut weights);
            for (k, weight) in visible.clone().zip(&weights) {
                let value = &cache.row(span, k as usize).1[part.clone()];
                for (o, v) in out.iter_mut().zip(value) {
                    *o += weight * v;
                }
            }
        }
    });
    out
}

/// The positions of the keys that token `t` sees.
fn visible_keys(spec: &AttentionSpec, places: &Places<'_>, t: usize) -> RangeInclusive<i64> {
    let position = i64::from(places.positions[t]);
    let last = match (spec.own_key, spec.bidirectional) {
        (false, _) => position - 1,
        (true, true) => i64::from(places.horizons[t]),
        (true, false) => position,
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
