use lapidary_backend::Result;
use lapidary_program::Weight;

use super::linear::{dot, linear};
use super::router::largest;

/// The weights of a centroid head.
pub(crate) struct CentroidHead<'a> {
    /// `[n_centroids, C]`.
    pub centroids: Weight<'a>,
    /// `[V]`: token ids, `V / n_centroids` for each centroid in turn.
    pub ordering: Vec<usize>,
    /// `[V, C]`.
    pub embedding: Weight<'a>,
    /// Centroids that are looked into.
    pub top: usize,
}

/// `x [_, C] → [_, V]`: logits of the tokens under the `top` best centroids; every other logit is
/// the least of those, minus 1.
pub(crate) fn centroid_head(head: &CentroidHead<'_>, x: &[f32]) -> Vec<f32> {
    let (n_centroids, channels) = (head.centroids.decl.rows(), head.centroids.decl.cols());
    let vocab = head.ordering.len();
    let per_centroid = vocab / n_centroids;
    let scores = linear(&head.centroids, None, x);
    let mut row = vec![0.0; channels];
    let mut out = vec![0.0; x.len() / channels * vocab];
    for ((x, scores), logits) in x
        .chunks_exact(channels)
        .zip(scores.chunks_exact(n_centroids))
        .zip(out.chunks_exact_mut(vocab))
    {
        let best = largest(scores, head.top);
        let tokens: Vec<usize> = best
            .iter()
            .flat_map(|c| &head.ordering[c * per_centroid..(c + 1) * per_centroid])
            .copied()
            .collect();
        let found: Vec<f32> = tokens
            .iter()
            .map(|token| {
                head.embedding.row_f32(*token, &mut row);
                dot(&row, x)
            })
            .collect();
        let least = found.iter().copied().fold(f32::INFINITY, f32::min);
        logits.fill(least - 1.0);
        for (token, logit) in tokens.iter().zip(found) {
            logits[*token] = logit;
        }
    }
    out
}

/// Reads an `i64` table of token ids. It comes from a file: an id outside the table is an error.
pub(crate) fn token_ordering(name: &str, weight: &Weight<'_>) -> Result<Vec<usize>> {
    let (ids, _) = weight.data.as_chunks::<8>();
    ids.iter()
        .map(|bytes| {
            let id = i64::from_le_bytes(*bytes);
            usize::try_from(id).ok().filter(|id| *id < ids.len()).ok_or_else(|| {
                let what = format!("token id {id} is outside its {} tokens", ids.len());
                lapidary_program::Error::Weight { weight: name.to_string(), what }.into()
            })
        })
        .collect()
}
