//! The arithmetic of attention's softmax: a block's exponentials, and merging blocks.

use std::ops::Range;

use crate::cache::Scales;
use crate::matrix::Cpu;
use crate::simd::{Kernel, LANES, Simd, exp, load, store};

/// Weighted sums of values with what a later merge needs: `Σ e^(s−max)·v`, `max` and `Σ e^(s−max)`.
/// A query that has seen nothing yet has the total 0.
pub(crate) struct Sums<'a> {
    /// `[queries, head_dim]`.
    pub values: &'a mut [f32],
    pub max: &'a mut [f32],
    pub total: &'a mut [f32],
}

impl<'a> Sums<'a> {
    pub(crate) fn new(head_dim: usize, n: usize, part: &'a mut [f32]) -> Self {
        let (values, part) = part.split_at_mut(n * head_dim);
        let (max, total) = part.split_at_mut(n);
        Sums { values, max, total }
    }

    /// Adds the sums of a later block for `n` queries.
    pub(crate) fn merge(&mut self, cpu: Cpu<'_>, later: &Sums<'_>, n: usize, is_first: bool) {
        let head_dim = later.values.len() / later.max.len();
        for i in 0..n {
            let values = &mut self.values[i * head_dim..(i + 1) * head_dim];
            let added = &later.values[i * head_dim..(i + 1) * head_dim];
            if is_first || self.total[i] == 0.0 {
                values.copy_from_slice(added);
                (self.max[i], self.total[i]) = (later.max[i], later.total[i]);
            } else if later.total[i] != 0.0 {
                let max = self.max[i].max(later.max[i]);
                let (old, new) = ((self.max[i] - max).exp(), (later.max[i] - max).exp());
                self.max[i] = max;
                self.total[i] = self.total[i] * old + later.total[i] * new;
                cpu.isa.run(Blend { values, added, old, new });
            }
        }
    }

    /// The result of query `i`.
    pub(crate) fn finish(&self, i: usize, sees_nothing: bool, out: &mut [f32]) {
        if sees_nothing {
            out.fill(0.0);
            return;
        }
        let head_dim = out.len();
        let values = &self.values[i * head_dim..(i + 1) * head_dim];
        let total = self.total[i];
        out.iter_mut().zip(values).for_each(|(o, v)| *o = v / total);
    }
}

/// `values · old + added · new`.
struct Blend<'a> {
    values: &'a mut [f32],
    added: &'a [f32],
    old: f32,
    new: f32,
}

impl Kernel for Blend<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (old, new) = (s.splat(self.old), s.splat(self.new));
        for (v, a) in self.values.chunks_mut(LANES).zip(self.added.chunks(LANES)) {
            let kept = s.mul(load(s, v), old);
            store(s, v, s.mul_add(load(s, a), new, kept));
        }
    }
}

/// Turns the products of whole panels into `e^(s·scale − max)` where they are seen and 0 elsewhere;
/// returns the largest and the sum, `−∞` and 0 if nothing is seen. Where keys and values have
/// scales, products become scores by those of the keys, and what is returned counts before the
/// exponentials take on those of the values.
pub(crate) struct Exponentials<'a> {
    pub scores: &'a mut [f32],
    pub seen: Range<usize>,
    pub scale: f32,
    /// Of the positions of `scores`.
    pub scales: Option<Scales<'a>>,
}

impl Kernel for Exponentials<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> (f32, f32) {
        let Exponentials { scores, seen, scale, scales } = self;
        if seen.is_empty() {
            scores.fill(0.0);
            return (f32::NEG_INFINITY, 0.0);
        }
        for part in scores.chunks_exact_mut(LANES) {
            store(s, part, s.mul(load(s, part), s.splat(scale)));
        }
        if let Some(scales) = scales {
            multiply(s, scores, scales.keys);
        }
        let max = largest(s, &scores[seen.clone()]);
        let negative = s.splat(-max);
        for part in scores.chunks_exact_mut(LANES) {
            let p = exp(s, s.add(load(s, part), negative));
            store(s, part, p);
        }
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let mut total = s.splat(0.0);
        for part in scores.chunks_exact(LANES) {
            total = s.add(total, load(s, part));
        }
        if let Some(scales) = scales {
            // Only where it is seen: what is not must not matter, even if it is not a number.
            multiply(s, &mut scores[seen.clone()], &scales.values[seen]);
        }
        (max, s.sum(total))
    }
}

#[inline(always)]
fn multiply<S: Simd>(s: S, x: &mut [f32], factors: &[f32]) {
    for (x, f) in x.chunks_mut(LANES).zip(factors.chunks(LANES)) {
        store(s, x, s.mul(load(s, x), load(s, f)));
    }
}

/// The largest of those that are numbers.
#[inline(always)]
fn largest<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (parts, rest) = x.as_chunks::<LANES>();
    let mut max = s.splat(f32::NEG_INFINITY);
    for part in parts {
        max = s.max(load(s, part), max);
    }
    rest.iter().fold(s.largest(max), |max, x| if *x > max { *x } else { max })
}
