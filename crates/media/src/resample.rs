//! Another number of samples in a second.

use rayon::prelude::*;

use crate::audio::Audio;

/// Zero crossings of the kernel on each side of its middle.
const ZEROS: f64 = 64.0;
/// The share of the lower rate's band that is kept.
const BAND: f64 = 0.945;
/// The shape of the Kaiser window: what is cut off is 140 dB down.
const BETA: f64 = 14.7;
/// Points of the kernel's table between two zero crossings; in between it is a straight line.
const FINE: usize = 1024;
/// So many weights are kept, and no more: odd rates have tens of thousands of phases.
const MAX_KEPT: u64 = 1 << 22;
/// Samples that one task makes.
const BLOCK: usize = 4096;

/// The same audio at another rate, by a windowed sinc of 64 zero crossings.
///
/// It begins where the audio begins, and has `n · to / from` samples, rounded. A rate of 0 gives
/// the audio back.
pub fn resample(audio: &Audio, rate: u32) -> Audio {
    if rate == 0 {
        return audio.clone();
    }
    let n = new_len(audio.samples().len(), audio.rate(), rate);
    Audio::from_parts(rate, resampled(audio, rate, n))
}

/// `n · to / from`, rounded half up.
pub(crate) fn new_len(n: usize, from: u32, to: u32) -> usize {
    let (from, to) = (u128::from(from.max(1)), u128::from(to));
    ((2 * n as u128 * to + from) / (2 * from)) as usize
}

/// The first `n` samples at another rate, which is not 0.
pub(crate) fn resampled(audio: &Audio, rate: u32, n: usize) -> Vec<f32> {
    let samples = audio.samples();
    if rate == audio.rate() {
        return samples[..n.min(samples.len())].to_vec();
    }
    let kernel = Kernel::new(audio.rate(), rate);
    let n = n.min(new_len(samples.len(), audio.rate(), rate));
    let mut out = vec![0.0; n];
    out.par_chunks_mut(BLOCK).enumerate().for_each(|(block, out)| {
        let mut own = vec![0.0; kernel.width];
        for (i, out) in out.iter_mut().enumerate() {
            *out = kernel.at((block * BLOCK + i) as u64, samples, &mut own);
        }
    });
    out
}

/// Weights of old samples around each new one.
struct Kernel {
    /// New sample `i` stands at old sample `i · step / phases`.
    step: u64,
    phases: u64,
    /// Weights on each side.
    reach: usize,
    /// Weights of one phase.
    width: usize,
    /// Those of all phases, or none if there are too many.
    kept: Vec<f32>,
    /// One side, finely.
    table: Vec<f64>,
    /// Zero crossings from one old sample to the next.
    cutoff: f64,
}

impl Kernel {
    fn new(from: u32, to: u32) -> Kernel {
        let divisor = common_divisor(from, to);
        let (step, phases) = (u64::from(from / divisor), u64::from(to / divisor));
        let cutoff = BAND * (f64::from(to) / f64::from(from)).min(1.0);
        let reach = (ZEROS / cutoff).ceil() as usize;
        let mut kernel = Kernel {
            step,
            phases,
            reach,
            width: 2 * reach,
            kept: Vec::new(),
            table: table(),
            cutoff,
        };
        if phases.saturating_mul(kernel.width as u64) <= MAX_KEPT {
            let mut kept = vec![0.0; phases as usize * kernel.width];
            for (phase, weights) in kept.chunks_exact_mut(kernel.width).enumerate() {
                kernel.weigh(phase as f64 / phases as f64, weights);
            }
            kernel.kept = kept;
        }
        kernel
    }

    /// New sample `i`; `own` is room for the weights of a phase.
    fn at(&self, i: u64, samples: &[f32], own: &mut [f32]) -> f32 {
        // At most 2^32 · 2^20: samples and rates are bounded.
        let place = i * self.step;
        let (whole, phase) = ((place / self.phases) as usize, place % self.phases);
        let begin = phase as usize * self.width;
        let weights = match self.kept.get(begin..begin + self.width) {
            Some(weights) => weights,
            None => {
                self.weigh(phase as f64 / self.phases as f64, own);
                own
            }
        };
        // Weight `k` is that of old sample `whole + 1 − reach + k`.
        let missing = (self.reach - 1).saturating_sub(whole);
        let first = whole + 1 + missing - self.reach;
        let old = samples.get(first..).unwrap_or_default();
        dot(&weights[missing..], old)
    }

    /// The weights when the new sample stands `fraction` after an old one. They sum up to 1.
    fn weigh(&self, fraction: f64, weights: &mut [f32]) {
        let at = |k: usize| {
            let distance = (fraction + self.reach as f64 - 1.0 - k as f64).abs() * self.cutoff;
            let place = distance * FINE as f64;
            let (i, rest) = (place as usize, place.fract());
            match self.table.get(i..i + 2) {
                Some(&[a, b]) => a + (b - a) * rest,
                _ => 0.0,
            }
        };
        let mut total = 0.0;
        for (k, weight) in weights.iter_mut().enumerate() {
            let exact = at(k);
            total += exact;
            *weight = exact as f32;
        }
        weights.iter_mut().for_each(|weight| *weight = (f64::from(*weight) / total) as f32);
    }
}

/// In eight lanes: the compiler may not change the order of one sum.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (a, b) = (a[..n].as_chunks::<8>(), b[..n].as_chunks::<8>());
    let mut sums = [0.0f32; 8];
    for (a, b) in a.0.iter().zip(b.0) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// The windowed sinc from its middle on, [`FINE`] points to a zero crossing.
fn table() -> Vec<f64> {
    let n = ZEROS as usize * FINE;
    let value = |i: usize| {
        let x = i as f64 / FINE as f64;
        let sinc = if i == 0 {
            1.0
        } else {
            (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x)
        };
        let edge = 1.0 - (x / ZEROS) * (x / ZEROS);
        sinc * bessel(BETA * edge.max(0.0).sqrt()) / bessel(BETA)
    };
    (0..=n).map(value).collect()
}

/// The modified Bessel function of the first kind, of order 0.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= (x / (2.0 * k)) * (x / (2.0 * k));
        sum += term;
        k += 1.0;
    }
    sum
}

fn common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
