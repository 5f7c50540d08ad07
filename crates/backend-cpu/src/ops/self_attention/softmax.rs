//! The arithmetic of one query's softmax, block after block. Scores are logarithms to base 2.

use crate::simd::{Kernel, LANES, Simd, exp2_of_negative, load, store};

/// Turns the scores of a block into weights `2^(s − largest)` and adds them to the sums of each
/// lane. Padding of `−∞` adds 2^−126, which is nothing beside the weight of the largest, 1.
///
/// Returns the largest score so far and the factor of all that was summed before.
pub(super) struct Weigh<'a> {
    /// Whole vectors.
    pub scores: &'a mut [f32],
    /// 16 sums.
    pub total: &'a mut [f32],
    /// The largest of the blocks before.
    pub before: f32,
    pub is_first: bool,
}

impl Kernel for Weigh<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> (f32, f32) {
        let mut largest = s.splat(self.before);
        for part in self.scores.chunks_exact(LANES) {
            largest = s.max(load(s, part), largest);
        }
        let largest = s.largest(largest);
        let mut sum = s.splat(0.0);
        let minus = s.splat(largest);
        for part in self.scores.chunks_exact_mut(LANES) {
            let weight = exp2_of_negative(s, s.sub(load(s, part), minus));
            store(s, part, weight);
            sum = s.add(sum, weight);
        }
        if self.is_first {
            store(s, self.total, sum);
            return (largest, 0.0);
        }
        let shrink = if largest == self.before {
            1.0
        } else {
            let mut lanes = [0.0; LANES];
            let by = s.sub(s.splat(self.before), s.splat(largest));
            store(s, &mut lanes, exp2_of_negative(s, by));
            lanes[0]
        };
        store(s, self.total, s.mul_add(load(s, self.total), s.splat(shrink), sum));
        (largest, shrink)
    }
}

/// `sums · factor`.
pub(super) struct Shrink<'a> {
    pub sums: &'a mut [f32],
    pub factor: f32,
}

impl Kernel for Shrink<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        for part in self.sums.chunks_mut(LANES) {
            store(s, part, s.mul(load(s, part), factor));
        }
    }
}

/// `sums / Σ total`.
pub(super) struct Finish<'a> {
    pub sums: &'a [f32],
    pub total: &'a [f32],
    pub out: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let total = s.splat(s.sum(load(s, self.total)));
        for (out, sums) in self.out.chunks_mut(LANES).zip(self.sums.chunks(LANES)) {
            store(s, out, s.div(load(s, sums), total));
        }
    }
}
