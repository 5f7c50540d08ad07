use lapidary_backend::Result;

use super::router::largest;
use crate::matrix::{Activations, Cpu, PackedWeight};
use crate::parallel::try_rows;
use crate::simd::{Kernel, LANES, Simd, load};
use crate::weights::Rows;

/// The weights of a centroid head.
pub(crate) struct CentroidHead<'a> {
    /// `[n_centroids, C]`.
    pub centroids: &'a PackedWeight,
    /// `[V]`: token ids, `V / n_centroids` for each centroid in turn.
    pub ordering: &'a [u32],
    /// `[V, C]`.
    pub embedding: Rows<'a>,
    /// Centroids that are looked into.
    pub top: usize,
}

/// `x [_, C] → [_, V]`: logits of the tokens under the `top` best centroids; every other logit is
/// the least of those, minus 1. `scores` has room for `[_, n_centroids]`.
pub(crate) fn centroid_head(
    cpu: Cpu<'_>,
    head: &CentroidHead<'_>,
    x: &[f32],
    (scores, activations): (&mut [f32], &mut Activations),
    out: &mut [f32],
) -> Result<()> {
    let (n_centroids, channels) = (head.centroids.shape().rows, head.centroids.shape().cols);
    let vocab = head.ordering.len();
    let per_centroid = vocab / n_centroids;
    let scores = &mut scores[..x.len() / channels * n_centroids];
    // A choice is not made by rounded numbers.
    let exact = Cpu { exact: true, ..cpu };
    head.centroids.matmul(exact, 0, None, x, activations, scores)?;
    let mut best = Vec::new();
    let mut found = vec![0.0; head.top * per_centroid];
    for ((x, scores), logits) in x
        .chunks_exact(channels)
        .zip(scores.chunks_exact(n_centroids))
        .zip(out.chunks_exact_mut(vocab))
    {
        largest(scores, head.top, &mut best);
        let tokens = |c: usize| &head.ordering[c * per_centroid..(c + 1) * per_centroid];
        try_rows(cpu, &mut found, per_centroid, per_centroid * channels, |i, found| {
            let mut row = vec![0.0; channels];
            for (logit, token) in found.iter_mut().zip(tokens(best[i] as usize)) {
                head.embedding.row_f32(*token as usize, &mut row)?;
                *logit = cpu.isa.run(Dot(&row, x));
            }
            Ok(())
        })?;
        let least = found.iter().copied().fold(f32::INFINITY, f32::min);
        logits.fill(least - 1.0);
        let chosen = best.iter().flat_map(|c| tokens(*c as usize));
        for (token, logit) in chosen.zip(&found) {
            logits[*token as usize] = *logit;
        }
    }
    Ok(())
}

struct Dot<'a>(&'a [f32], &'a [f32]);

impl Kernel for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> f32 {
        let mut sum = s.splat(0.0);
        for (a, b) in self.0.chunks(LANES).zip(self.1.chunks(LANES)) {
            sum = s.mul_add(load(s, a), load(s, b), sum);
        }
        s.sum(sum)
    }
}
