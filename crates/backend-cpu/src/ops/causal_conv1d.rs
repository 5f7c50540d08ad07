use crate::matrix::Cpu;
use crate::parallel::rows;
use crate::simd::{Kernel, LANES, Simd, load, store};

/// `x [F, C] → [F, C]`: `y[t] = Σ_k w[k] · x[t − K + 1 + k]` in each channel by itself; rows before
/// the first are zero. `taps` is `[K, C]`.
pub(crate) fn causal_conv1d(
    cpu: Cpu<'_>,
    x: &[f32],
    taps: &[f32],
    (out, channels): (&mut [f32], usize),
) {
    let n_taps = taps.len() / channels;
    rows(cpu, out, channels, |t, out| {
        // The taps that meet rows which are there.
        let skipped = n_taps.saturating_sub(t + 1);
        let taps = &taps[skipped * channels..];
        let start = (t + 1 + skipped - n_taps) * channels;
        cpu.isa.run(Row { x: &x[start..(t + 1) * channels], taps, out });
    });
}

/// One row of the result, from as many rows as there are taps.
struct Row<'a> {
    x: &'a [f32],
    taps: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let channels = self.out.len();
        for (i, out) in self.out.chunks_mut(LANES).enumerate() {
            let part = i * LANES..i * LANES + out.len();
            let mut sum = s.splat(0.0);
            let rows = self.x.chunks_exact(channels).zip(self.taps.chunks_exact(channels));
            for (x, tap) in rows {
                sum = s.mul_add(load(s, &tap[part.clone()]), load(s, &x[part.clone()]), sum);
            }
            store(s, out, sum);
        }
    }
}
