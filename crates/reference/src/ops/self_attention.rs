use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

use super::attention::softmax;
use super::linear::dot;

/// `q, k, v [P, heads·head_dim] → same`: for each head, `softmax over all rows of (q · k · scale)`,
/// times the values.
pub(crate) fn self_attention(
    (q, k, v): (&[f32], &[f32], &[f32]),
    n_heads: usize,
    head_dim: usize,
    scale: f32,
) -> Vec<f32> {
    let channels = n_heads * head_dim;
    let mut out = vec![0.0; q.len()];
    out.par_chunks_exact_mut(channels).enumerate().for_each(|(t, out)| {
        for (h, out) in out.chunks_exact_mut(head_dim).enumerate() {
            let head = h * head_dim..(h + 1) * head_dim;
            let q = &q[t * channels..][head.clone()];
            let keys = k.chunks_exact(channels);
            let mut weights: Vec<f32> = keys.map(|k| dot(q, &k[head.clone()]) * scale).collect();
            softmax(&mut weights);
            for (weight, v) in weights.iter().zip(v.chunks_exact(channels)) {
                for (o, v) in out.iter_mut().zip(&v[head.clone()]) {
                    *o += weight * v;
                }
            }
        }
    });
    out
}
