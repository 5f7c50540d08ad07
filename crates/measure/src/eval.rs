//! Quality as numbers.

mod kl;

use lapidary_runner::{Error, Result, Rows, Runner};
use serde::Serialize;

pub use kl::{Divergence, divergence};

/// The perplexity of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Perplexity {
    /// `exp(nll)`.
    pub ppl: f64,
    /// Mean negative log-likelihood of the scored tokens, in nats.
    pub nll: f64,
    /// The standard error of `nll`.
    pub nll_stderr: f64,
    /// Tokens that were scored.
    pub n_scored: usize,
    /// Windows that were run.
    pub n_windows: usize,
}

/// Perplexity in the way that llama.cpp's tool measures it, so that figures compare: the text is
/// cut into windows, each begins with the token that begins a sequence, and only predictions made
/// in the second half count, so that every scored token has a context. A last window that is not
/// full is left out. `progress` is told windows done and in all.
pub fn perplexity(
    runner: &mut Runner,
    tokens: &[u32],
    window: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Perplexity> {
    let vocab_size = runner.metadata().vocab_size as usize;
    let n_windows = n_windows(tokens, window)?;
    let mut scores: Vec<f64> = Vec::with_capacity(n_windows * window / 2);
    for (i, piece) in windows(runner, tokens, window).enumerate() {
        runner.logits(&piece, Rows::All, None, &mut |first, logits| {
            for (row, logits) in scored(first, logits, vocab_size, window) {
                scores.push(negative_log_likelihood(logits, piece[row + 1]));
            }
        })?;
        progress(i + 1, n_windows);
    }
    let (nll, nll_stderr) = mean(&scores);
    Ok(Perplexity { ppl: nll.exp(), nll, nll_stderr, n_scored: scores.len(), n_windows })
}

/// Perplexity where every token counts: the text is cut into windows, each of which follows the
/// token that begins a sequence. A last window that is not full is left out. Figures are higher than
/// those of [`perplexity`], because tokens with little context are among them.
pub fn perplexity_of_every_token(
    runner: &mut Runner,
    tokens: &[u32],
    window: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Perplexity> {
    let vocab_size = runner.metadata().vocab_size as usize;
    let Some(bos) = runner.metadata().bos_id else {
        let what = "this model has no token that begins a sequence";
        return Err(Error::Param { param: "window", what: what.into() });
    };
    let n_windows = n_windows(tokens, window)?;
    let mut scores: Vec<f64> = Vec::with_capacity(n_windows * window);
    for (i, part) in tokens.chunks_exact(window).enumerate() {
        // The last token is only predicted, so it is not fed.
        let fed: Vec<u32> = std::iter::once(bos).chain(part[..window - 1].to_vec()).collect();
        runner.logits(&fed, Rows::All, None, &mut |first, logits| {
            for (row, logits) in (first..).zip(logits.chunks_exact(vocab_size)) {
                scores.push(negative_log_likelihood(logits, part[row]));
            }
        })?;
        progress(i + 1, n_windows);
    }
    let (nll, nll_stderr) = mean(&scores);
    Ok(Perplexity { ppl: nll.exp(), nll, nll_stderr, n_scored: scores.len(), n_windows })
}

fn n_windows(tokens: &[u32], window: usize) -> Result<usize> {
    let n = tokens.len() / window.max(1);
    if window < 4 || n == 0 {
        let what = format!("{} tokens do not fill a window of {window}", tokens.len());
        return Err(Error::Param { param: "window", what });
    }
    Ok(n)
}

/// The full windows of a text, each after the token that begins a sequence, in the place of its
/// first token.
fn windows<'a>(
    runner: &Runner,
    tokens: &'a [u32],
    window: usize,
) -> impl Iterator<Item = Vec<u32>> + use<'a> {
    let metadata = runner.metadata();
    let bos = metadata.bos_id.filter(|_| metadata.add_bos);
    tokens.chunks_exact(window).map(move |part| {
        let mut piece = part.to_vec();
        if let (Some(first), Some(bos)) = (piece.first_mut(), bos) {
            *first = bos;
        }
        piece
    })
}

/// Those rows of a chunk whose predictions count: the second half of a window, but not its last
/// row, which predicts a token of the next.
fn scored(
    first: usize,
    logits: &[f32],
    vocab_size: usize,
    window: usize,
) -> impl Iterator<Item = (usize, &[f32])> {
    let rows = (first..).zip(logits.chunks_exact(vocab_size));
    rows.filter(move |(row, _)| *row >= window / 2 && row + 1 < window)
}

/// A mean and its standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, (variance / n).sqrt())
}

fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from((x - largest).exp())).sum();
    sum.ln() - f64::from(logits[token as usize] - largest)
}

#[cfg(test)]
mod tests {
    use super::negative_log_likelihood;

    #[test]
    fn a_flat_distribution_costs_the_logarithm_of_its_size() {
        let cost = negative_log_likelihood(&[3.0; 64], 7);
        assert!((cost - 64f64.ln()).abs() < 1e-9);
        assert!(negative_log_likelihood(&[0.0, 100.0], 1) < 1e-9);
        assert!((negative_log_likelihood(&[0.0, 100.0], 0) - 100.0).abs() < 1e-5);
    }
}
