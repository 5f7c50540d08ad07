//! How far a model's predictions are from those of a reference.

use lapidary_runner::{Error, Result, Rows, Runner};
use serde::Serialize;

use super::{mean, n_windows, scored, windows};

/// How far the predictions of a model are from those of a reference, over the scored tokens of a
/// text. Divergences are in nats, probabilities in parts of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Divergence {
    /// Mean of `KL(reference ‖ model)`.
    pub kl_mean: f64,
    /// The standard error of `kl_mean`.
    pub kl_stderr: f64,
    /// Half of the tokens diverge less.
    pub kl_median: f64,
    /// 90 % of the tokens diverge less.
    pub kl_p90: f64,
    /// 95 % of the tokens diverge less.
    pub kl_p95: f64,
    /// 99 % of the tokens diverge less.
    pub kl_p99: f64,
    /// 99.9 % of the tokens diverge less.
    pub kl_p99_9: f64,
    /// The worst token.
    pub kl_max: f64,
    /// Part of the tokens where both hold the same token for the likeliest.
    pub same_top: f64,
    /// Mean of what the model gives the right token more than the reference does.
    pub delta_p_mean: f64,
    /// Root of the mean square of the same.
    pub delta_p_rms: f64,
    /// Perplexity of the model.
    pub ppl: f64,
    /// Perplexity of the reference.
    pub ppl_reference: f64,
    /// `ln(ppl / ppl_reference)`.
    pub ln_ppl_ratio: f64,
    /// The standard error of `ln_ppl_ratio`.
    pub ln_ppl_ratio_stderr: f64,
    /// Tokens that were scored.
    pub n_scored: usize,
    /// Windows that were run.
    pub n_windows: usize,
}

/// Compares models with a reference in the way that llama.cpp's `--kl-divergence` does, over the
/// windows of [`perplexity`](super::perplexity). The reference runs once however many models there
/// are; what is kept of it is the logits of half a window. `progress` is told windows done and in
/// all.
pub fn divergence(
    reference: &mut Runner,
    models: &mut [Runner],
    tokens: &[u32],
    window: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Divergence>> {
    let vocab_size = reference.metadata().vocab_size as usize;
    if let Some(other) = models.iter().find(|m| m.metadata().vocab_size as usize != vocab_size) {
        let got = other.metadata().vocab_size;
        let what = format!("it has {vocab_size} tokens, the model {got}; they must be of one kind");
        return Err(Error::Param { param: "reference", what });
    }
    let n_windows = n_windows(tokens, window)?;
    let mut scores: Vec<Vec<Score>> = vec![vec![]; models.len()];
    let mut kept = Kept::default();
    for (i, piece) in windows(reference, tokens, window).enumerate() {
        kept.logits.clear();
        kept.rows.clear();
        reference.logits(&piece, Rows::All, None, &mut |first, logits| {
            let rows: Vec<_> = scored(first, logits, vocab_size, window).collect();
            kept.rows.extend(in_parallel(&rows, |_, row| Row::of(row)));
            rows.iter().for_each(|(_, row)| kept.logits.extend_from_slice(row));
        })?;
        for (model, scores) in models.iter_mut().zip(&mut scores) {
            model.logits(&piece, Rows::All, None, &mut |first, logits| {
                let rows: Vec<_> = scored(first, logits, vocab_size, window).collect();
                scores.extend(in_parallel(&rows, |row, logits| {
                    let place = row - window / 2;
                    let theirs = &kept.logits[place * vocab_size..][..vocab_size];
                    Score::of((theirs, &kept.rows[place]), logits, piece[row + 1] as usize)
                }));
            })?;
        }
        progress(i + 1, n_windows);
    }
    Ok(scores.iter().map(|scores| Divergence::of(scores, n_windows)).collect())
}

/// The reference's predictions in one window.
#[derive(Default)]
struct Kept {
    /// One row after another, beginning with the first that is scored.
    logits: Vec<f32>,
    rows: Vec<Row>,
}

/// What is known of one row of logits.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// The logarithm of the sum of all exponentials.
    norm: f64,
    /// The likeliest token, the lowest of equals.
    top: usize,
}

impl Row {
    fn of(logits: &[f32]) -> Self {
        let first = (0, f32::NEG_INFINITY);
        let (top, largest) = logits
            .iter()
            .enumerate()
            .fold(first, |best, (i, x)| if *x > best.1 { (i, *x) } else { best });
        let largest = f64::from(largest);
        let sum: f64 = logits.iter().map(|x| (f64::from(*x) - largest).exp()).sum();
        Row { norm: largest + sum.ln(), top }
    }
}

/// One token, predicted by both.
#[derive(Clone, Copy, Debug)]
struct Score {
    kl: f64,
    nll: f64,
    nll_reference: f64,
    same_top: bool,
}

impl Score {
    fn of((theirs, their): (&[f32], &Row), ours: &[f32], token: usize) -> Self {
        let our = Row::of(ours);
        let kl = theirs
            .iter()
            .zip(ours)
            .map(|(p, q)| {
                let ln_p = f64::from(*p) - their.norm;
                ln_p.exp() * (ln_p - (f64::from(*q) - our.norm))
            })
            .sum::<f64>();
        Score {
            // Rounding may leave a little less than nothing.
            kl: kl.max(0.0),
            nll: our.norm - f64::from(ours[token]),
            nll_reference: their.norm - f64::from(theirs[token]),
            same_top: our.top == their.top,
        }
    }
}

impl Divergence {
    fn of(scores: &[Score], n_windows: usize) -> Self {
        let all = |f: fn(&Score) -> f64| scores.iter().map(f).collect::<Vec<f64>>();
        let mut kl = all(|s| s.kl);
        let (kl_mean, kl_stderr) = mean(&kl);
        kl.sort_by(f64::total_cmp);
        let delta_p = all(|s| (-s.nll).exp() - (-s.nll_reference).exp());
        let squares: Vec<f64> = delta_p.iter().map(|d| d * d).collect();
        let (ln_ppl_ratio, ln_ppl_ratio_stderr) = mean(&all(|s| s.nll - s.nll_reference));
        Divergence {
            kl_mean,
            kl_stderr,
            kl_median: quantile(&kl, 0.5),
            kl_p90: quantile(&kl, 0.9),
            kl_p95: quantile(&kl, 0.95),
            kl_p99: quantile(&kl, 0.99),
            kl_p99_9: quantile(&kl, 0.999),
            kl_max: quantile(&kl, 1.0),
            same_top: mean(&all(|s| f64::from(u8::from(s.same_top)))).0,
            delta_p_mean: mean(&delta_p).0,
            delta_p_rms: mean(&squares).0.sqrt(),
            ppl: mean(&all(|s| s.nll)).0.exp(),
            ppl_reference: mean(&all(|s| s.nll_reference)).0.exp(),
            ln_ppl_ratio,
            ln_ppl_ratio_stderr,
            n_scored: scores.len(),
            n_windows,
        }
    }
}

/// The value below which a part of them lies, between the two nearest in proportion.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let at = part * sorted.len().saturating_sub(1) as f64;
    let below = at.floor() as usize;
    match (sorted.get(below), sorted.get(below + 1)) {
        (Some(a), Some(b)) => a + (b - a) * at.fract(),
        (Some(a), None) => *a,
        _ => f64::NAN,
    }
}

/// Rows one by one, on all processors: exponentials of whole vocabularies cost as much as a model.
fn in_parallel<'a, T: Send>(
    rows: &[(usize, &'a [f32])],
    f: impl Fn(usize, &'a [f32]) -> T + Sync,
) -> Vec<T> {
    let n_threads = lapidary_backend::host::n_threads();
    let share = rows.len().div_ceil(n_threads).max(1);
    std::thread::scope(|scope| {
        let work: Vec<_> = rows
            .chunks(share)
            .map(|rows| {
                let f = &f;
                let all = move || rows.iter().map(|(i, row)| f(*i, row)).collect::<Vec<T>>();
                // Where there is no thread to be had, this one does it.
                std::thread::Builder::new().spawn_scoped(scope, all).map_err(|_| all())
            })
            .collect();
        work.into_iter()
            .flat_map(|work| match work {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }
                Err(done) => done,
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::{Divergence, Row, Score, quantile};

    fn score(theirs: &[f32], ours: &[f32], token: usize) -> Score {
        Score::of((theirs, &Row::of(theirs)), ours, token)
    }

    #[test]
    fn two_tokens_diverge_by_the_formula() {
        // P = (1/4, 3/4) and Q = (1/2, 1/2).
        let got = score(&[0.0, 3f32.ln()], &[7.0, 7.0], 1);
        let want = 0.25 * (0.25f64 / 0.5).ln() + 0.75 * (0.75f64 / 0.5).ln();
        assert!((got.kl - want).abs() < 1e-7, "{}", got.kl);
        assert!((got.nll - 2f64.ln()).abs() < 1e-12);
        assert!((got.nll_reference - (4f64 / 3.0).ln()).abs() < 1e-7);
        assert!(!got.same_top, "of two equal tokens the first is the likeliest");
    }

    #[test]
    fn a_model_does_not_diverge_from_itself_however_large_its_logits() {
        let logits: Vec<f32> = (0..1000).map(|i| (i * 37 % 101) as f32 * 10.0 - 500.0).collect();
        let shifted: Vec<f32> = logits.iter().map(|x| x + 64.0).collect();
        let got = score(&logits, &shifted, 3);
        assert!(got.kl < 1e-12 && got.same_top, "{got:?}");
    }

    #[test]
    fn summaries_are_those_of_the_scores() {
        let kl = [0.0, 1.0, 2.0, 3.0, 4.0];
        let scores: Vec<Score> = kl
            .iter()
            .map(|kl| Score { kl: *kl, nll: 2.0, nll_reference: 1.0, same_top: *kl < 4.0 })
            .collect();
        let d = Divergence::of(&scores, 1);
        assert_eq!((d.kl_mean, d.kl_median, d.kl_max, d.same_top), (2.0, 2.0, 4.0, 0.8));
        assert!((d.kl_p90 - 3.6).abs() < 1e-12);
        assert_eq!((d.ln_ppl_ratio, d.ln_ppl_ratio_stderr), (1.0, 0.0));
        assert!((d.delta_p_mean - ((-2f64).exp() - (-1f64).exp())).abs() < 1e-15);
        assert!((d.delta_p_rms + d.delta_p_mean).abs() < 1e-15);
        assert!((d.ppl / d.ppl_reference - 1f64.exp()).abs() < 1e-12);
        assert_eq!(quantile(&[5.0], 0.999), 5.0);
    }
}
