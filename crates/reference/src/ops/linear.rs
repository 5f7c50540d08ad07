use std::ops::Range;

use lapidary_program::Weight;
use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// `x [T, K] → [T, N]`: `x · Wᵀ (+ b)`, `W [N, K]`.
pub(crate) fn linear(weight: &Weight<'_>, bias: Option<&[f32]>, x: &[f32]) -> Vec<f32> {
    let mut y = matmul(weight, 0..weight.decl.rows(), x);
    if let Some(bias) = bias {
        for row in y.chunks_exact_mut(bias.len()) {
            for (y, b) in row.iter_mut().zip(bias) {
                *y += b;
            }
        }
    }
    y
}

/// `x [T, K] → [T, rows.len()]`: products with some rows of a weight.
///
/// Each row is decoded once and multiplied with all of `x`; rows are shared among threads.
pub(crate) fn matmul(weight: &Weight<'_>, rows: Range<usize>, x: &[f32]) -> Vec<f32> {
    let n_in = weight.decl.cols();
    let (n_tokens, n_out) = (x.len() / n_in, rows.len());
    if n_tokens == 0 {
        return vec![];
    }
    // [n_out, n_tokens], so that a thread writes what it made in one piece.
    let mut columns = vec![0.0; n_out * n_tokens];
    columns.par_chunks_exact_mut(n_tokens).enumerate().for_each_init(
        || vec![0.0; n_in],
        |decoded, (n, column)| {
            weight.row_f32(rows.start + n, decoded);
            for (y, x) in column.iter_mut().zip(x.chunks_exact(n_in)) {
                *y = dot(decoded, x);
            }
        },
    );
    let mut y = vec![0.0; n_tokens * n_out];
    for (n, column) in columns.chunks_exact(n_tokens).enumerate() {
        for (t, value) in column.iter().enumerate() {
            y[t * n_out + n] = *value;
        }
    }
    y
}

/// `Σ a·b`, in 16 partial sums: exact enough for long rows, and quick.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a_blocks, a_tail) = a.as_chunks::<16>();
    let (b_blocks, b_tail) = b.as_chunks::<16>();
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + tail
}
