//! Mel spectra.

use lapidary_program::LogMel;
use realfft::{RealFftPlanner, num_complex::Complex};

use crate::error::{Error, Result};

// Descriptions come from files too. No model takes a hundredth of this.
/// Frames times samples of a transform and numbers of a frame.
const MAX_WORK: usize = 1 << 28;
/// Samples of a transform times triangles.
const MAX_SHAPES: usize = 1 << 24;

/// How many frames an audio clip of `n` samples has.
///
/// A frame counts if its whole window is audio, and one sample after it too: the models' own
/// preparation looks at one sample more than a window, and leaves out frames where that one is
/// padding. So zeros at the end would never be heard.
pub(crate) fn n_frames(n: usize, mel: &LogMel) -> usize {
    let heard = (n as u64 + u64::from(mel.pad_left)).checked_sub(u64::from(mel.window) + 1);
    heard.map_or(0, |last| (last / u64::from(mel.hop.max(1))) as usize + 1)
}

/// The least number of samples that make a frame.
pub(crate) fn least(mel: &LogMel) -> u64 {
    (u64::from(mel.window) + 1).saturating_sub(mel.pad_left.into()).max(1)
}

/// Rows of `ln(floor + mel)`.
pub(crate) fn log_mel(samples: &[f32], rate: u32, mel: &LogMel) -> Result<Vec<f32>> {
    let n_mels = mel.n_mels as usize;
    if mel.window > mel.fft || [mel.window, mel.hop, mel.fft, mel.n_mels].contains(&0) {
        return Err(Error::Spec { what: "a window of audio that doesn't fit".into() });
    }
    let n_rows = n_frames(samples.len(), mel);
    let (work, shapes) = (mel.fft as usize + n_mels, mel.fft as usize * n_mels);
    if n_rows.saturating_mul(work) > MAX_WORK || shapes > MAX_SHAPES {
        return Err(Error::Spec { what: format!("{n_rows} frames of {n_mels} numbers each") });
    }
    let transform = RealFftPlanner::<f64>::new().plan_fft_forward(mel.fft as usize);
    let (mut time, mut frequency) = (transform.make_input_vec(), transform.make_output_vec());
    let mut scratch = transform.make_scratch_vec();
    let window = hann(mel.window as usize);
    let triangles = triangles(rate, mel, frequency.len());
    let mut rows = vec![0.0; n_rows * n_mels];
    for (i, row) in rows.chunks_exact_mut(n_mels).enumerate() {
        time.fill(0.0);
        let begin = i * mel.hop as usize;
        for (k, (value, weight)) in time.iter_mut().zip(&window).enumerate() {
            // Before the first sample there are zeros.
            let at = (begin + k).checked_sub(mel.pad_left as usize);
            let sample = at.and_then(|at| samples.get(at)).copied().unwrap_or(0.0);
            *value = f64::from(sample) * weight;
        }
        let done = transform.process_with_scratch(&mut time, &mut frequency, &mut scratch);
        done.map_err(|e| Error::Spec { what: e.to_string() })?;
        for (value, triangle) in row.iter_mut().zip(&triangles) {
            *value = (triangle.sum(&frequency) + f64::from(mel.floor)).ln() as f32;
        }
    }
    Ok(rows)
}

/// Periodic.
fn hann(n: usize) -> Vec<f64> {
    let at = |i: usize| 0.5 - 0.5 * (std::f64::consts::TAU * i as f64 / n as f64).cos();
    (0..n).map(at).collect()
}

/// Weights of the frequencies that make one number.
struct Triangle {
    first: usize,
    weights: Vec<f64>,
}

impl Triangle {
    fn sum(&self, spectrum: &[Complex<f64>]) -> f64 {
        let heard = spectrum.iter().skip(self.first).zip(&self.weights);
        heard.map(|(value, weight)| value.norm() * weight).sum()
    }
}

/// Triangles whose corners are evenly spread on the mel scale, of height 1.
fn triangles(rate: u32, mel: &LogMel, n_bins: usize) -> Vec<Triangle> {
    let to_mel = |hz: f64| 2595.0 * (1.0 + hz / 700.0).log10();
    let to_hz = |mel: f64| 700.0 * (10f64.powf(mel / 2595.0) - 1.0);
    let (low, high) = (to_mel(mel.low.into()), to_mel(mel.high.into()));
    let step = (high - low) / f64::from(mel.n_mels + 1);
    let corner = |i: u32| to_hz(low + step * f64::from(i));
    let hz = |bin: usize| f64::from(rate / 2) * bin as f64 / (n_bins.max(2) - 1) as f64;
    let triangle = |i: u32| {
        let (left, middle, right) = (corner(i), corner(i + 1), corner(i + 2));
        let height = |hz: f64| ((hz - left) / (middle - left)).min((right - hz) / (right - middle));
        let inside = |bin: &usize| height(hz(*bin)) > 0.0;
        let first = (0..n_bins).find(inside).unwrap_or(n_bins);
        let weights = (first..n_bins).take_while(inside).map(|bin| height(hz(bin))).collect();
        Triangle { first, weights }
    };
    (0..mel.n_mels).map(triangle).collect()
}
