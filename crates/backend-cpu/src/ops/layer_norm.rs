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
            // Differences are stored before they are squared: the lanes behind a short end are
            // then zeros again.
            let mut squares = s.splat(0.0);
            for x in run.chunks_mut(LANES) {
                store(s, x, s.sub(load(s, x), mean));
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
