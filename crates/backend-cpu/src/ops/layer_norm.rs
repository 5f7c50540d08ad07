use super::begin;
use crate::matrix::Cpu;
use crate::parallel::rows;
use crate::simd::{Kernel, LANES, Simd, load, store};

/// The numbers of a norm that are not activations.
#[derive(Clone, Copy)]
pub(crate) struct LayerNorm<'a> {
    /// `[width]`: as many channels are normalised together.
    pub weight: &'a [f32],
    /// `[width]`; without one nothing is added.
    pub bias: Option<&'a [f32]>,
    /// Added under the root.
    pub eps: f32,
}

/// `x [_, C] → [_, C]`: each run of `width` channels becomes
/// `(x − mean) / sqrt(variance + eps) · w + b`.
pub(crate) fn layer_norm(
    cpu: Cpu<'_>,
    first: Option<&[f32]>,
    norm: LayerNorm<'_>,
    (out, channels): (&mut [f32], usize),
) {
    rows(cpu, out, channels, |row, out| {
        begin(first, row * channels, out);
        cpu.isa.run(Row { norm, out });
    });
}

struct Row<'a> {
    norm: LayerNorm<'a>,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let LayerNorm { weight, bias, eps } = self.norm;
        let width = weight.len();
        for run in self.out.chunks_exact_mut(width) {
            let mut sum = s.splat(0.0);
            for x in run.chunks(LANES) {
                sum = s.add(sum, load(s, x));
            }
            let mean = s.splat(s.sum(sum) / width as f32);
            // The mean of many like numbers is rounded by more than they differ: what it is off by
            // is the mean of the differences, which are small. They are stored before they are
            // read again: the lanes after a short end are then zeros again.
            let mut rest = s.splat(0.0);
            for x in run.chunks_mut(LANES) {
                store(s, x, s.sub(load(s, x), mean));
                rest = s.add(rest, load(s, x));
            }
            let rest = s.splat(s.sum(rest) / width as f32);
            let mut squares = s.splat(0.0);
            for x in run.chunks_mut(LANES) {
                store(s, x, s.sub(load(s, x), rest));
                let x = load(s, x);
                squares = s.mul_add(x, x, squares);
            }
            let inverse = s.splat(1.0 / (s.sum(squares) / width as f32 + eps).sqrt());
            for (i, (x, w)) in run.chunks_mut(LANES).zip(weight.chunks(LANES)).enumerate() {
                let bias = bias.map_or(s.splat(0.0), |bias| load(s, &bias[i * LANES..]));
                let normal = s.mul(load(s, x), inverse);
                store(s, x, s.mul_add(normal, load(s, w), bias));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LayerNorm, layer_norm};
    use crate::matrix::Cpu;
    use crate::simd::Isa;
    use crate::workers::Workers;

    /// A flat image: what differs is far less than the numbers, and is all that matters.
    #[test]
    fn small_differences_of_large_numbers_are_kept() {
        let width = 700;
        let x: Vec<f32> = (0..width).map(|i| 100.1 + (i % 7) as f32 * 2e-5).collect();
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
        let squares = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
        let root = (squares / width as f64 + 1e-12).sqrt();
        let (weight, workers) = (vec![1.0; width], Workers::new(1));
        for isa in Isa::all() {
            let cpu = Cpu { isa, workers: &workers, exact: true, stop: None };
            let mut out = x.clone();
            let norm = LayerNorm { weight: &weight, bias: None, eps: 1e-12 };
            layer_norm(cpu, None, norm, (&mut out, width));
            for (got, x) in out.iter().zip(&x) {
                let want = (f64::from(*x) - mean) / root;
                assert!((f64::from(*got) - want).abs() < 1e-5, "{isa:?}: {got}, not {want}");
            }
        }
    }
}
