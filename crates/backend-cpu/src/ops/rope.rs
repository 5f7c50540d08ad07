use lapidary_backend_kit::angles;

use super::begin;
use crate::matrix::Cpu;
use crate::parallel::rows;
use crate::simd::{Kernel, LANES, Simd, load, store};

/// `positions [T] → [T, 2·pairs]`: the cosines of a token's angles, then their sines.
/// All layers that rotate alike share one such table per call.
pub(crate) fn rope_table(cpu: Cpu<'_>, frequencies: &[f32], positions: &[i32], out: &mut [f32]) {
    let pairs = frequencies.len();
    if pairs == 0 {
        return;
    }
    rows(cpu, out, 2 * pairs, |t, out| {
        let (cosines, sines) = out.split_at_mut(pairs);
        angles(positions[t], frequencies, cosines, sines);
    });
}

/// `x [T, heads·head_dim] → same`, half-split: pair `i` couples elements `i` and `i + head_dim/2`;
/// pairs after those of the table pass unchanged.
pub(crate) fn rope(
    cpu: Cpu<'_>,
    first: Option<&[f32]>,
    (table, pairs): (&[f32], usize),
    head_dim: usize,
    (out, channels): (&mut [f32], usize),
) {
    rows(cpu, out, channels, |t, out| {
        begin(first, t * channels, out);
        let (cosines, sines) = table[t * 2 * pairs..(t + 1) * 2 * pairs].split_at(pairs);
        cpu.isa.run(Rotate { cosines, sines, head_dim, out });
    });
}

struct Rotate<'a> {
    cosines: &'a [f32],
    sines: &'a [f32],
    head_dim: usize,
    out: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        for head in self.out.chunks_exact_mut(self.head_dim) {
            turn(s, head, (self.cosines, self.sines));
        }
    }
}

/// Turns one head, half-split; elements after the pairs of these angles pass unchanged.
#[inline(always)]
pub(super) fn turn<S: Simd>(s: S, head: &mut [f32], (cosines, sines): (&[f32], &[f32])) {
    let pairs = cosines.len();
    let (low, high) = head.split_at_mut(head.len() / 2);
    let halves = low[..pairs].chunks_mut(LANES).zip(high[..pairs].chunks_mut(LANES));
    let angles = cosines.chunks(LANES).zip(sines.chunks(LANES));
    for ((low, high), (cos, sin)) in halves.zip(angles) {
        let (a, b) = (load(s, low), load(s, high));
        let (cos, sin) = (load(s, cos), load(s, sin));
        store(s, low, s.sub(s.mul(a, cos), s.mul(b, sin)));
        store(s, high, s.add(s.mul(b, cos), s.mul(a, sin)));
    }
}
