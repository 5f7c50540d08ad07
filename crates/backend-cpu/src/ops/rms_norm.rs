use super::begin;
use crate::matrix::Cpu;
use crate::parallel::rows;
use crate::simd::{Kernel, LANES, Simd, load, store};

/// The numbers of a norm that are not activations.
#[derive(Clone, Copy)]
pub(crate) struct RmsNorm<'a> {
    /// `[width]`; without one the factor is 1.
    pub weight: Option<&'a [f32]>,
    /// Added under the root.
    pub eps: f32,
    /// Added to the weight.
    pub offset: f32,
    /// Channels that are normalised together.
    pub width: usize,
}

/// `x [_, C] → [_, C]`: each run of `width` channels becomes
/// `x / sqrt(mean(x²) + eps) · (offset + w)`.
pub(crate) fn rms_norm(
    cpu: Cpu<'_>,
    first: Option<&[f32]>,
    norm: RmsNorm<'_>,
    (out, channels): (&mut [f32], usize),
) {
    rows(cpu, out, channels, |row, out| {
        begin(first, row * channels, out);
        cpu.isa.run(Row { norm, out });
    });
}

struct Row<'a> {
    norm: RmsNorm<'a>,
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let RmsNorm { weight, eps, offset, width } = self.norm;
        for run in self.out.chunks_exact_mut(width) {
            let mut squares = s.splat(0.0);
            for x in run.chunks(LANES) {
                let x = load(s, x);
                squares = s.mul_add(x, x, squares);
            }
            let inverse = s.splat(1.0 / (s.sum(squares) / width as f32 + eps).sqrt());
            match weight {
                Some(weight) => {
                    for (x, w) in run.chunks_mut(LANES).zip(weight.chunks(LANES)) {
                        let factor = s.add(load(s, w), s.splat(offset));
                        store(s, x, s.mul(s.mul(load(s, x), inverse), factor));
                    }
                }
                None => {
                    for x in run.chunks_mut(LANES) {
                        store(s, x, s.mul(load(s, x), inverse));
                    }
                }
            }
        }
    }
}
