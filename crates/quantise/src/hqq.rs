//! Half-quadratic quantisation: the bias of a group moves so that a few large errors count less
//! than many small ones (an `l_p` norm with `p < 1`), by alternating between a shrinkage of the
//! error and a mean. Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning
//! Models", 2023.
//!
//! Two things are added. Scale and bias are then fitted to the codes by least squares. And of all
//! grids that were tried, min-max among them, each group takes the one with the least squared
//! error: divergence of a model's predictions follows that, and not the `l_p` norm.

use lapidary_program::DType;

use crate::min_max::{Grid, assign, range, stored};
use crate::recipe::Quantise;

/// `p` of the norm is 3/4: a power of −1/4 is the root of a root, which every processor rounds alike.
const ROUNDS: usize = 12;
/// How strongly errors are shrunk in the first round, in units of the group's step, and how that
/// grows.
const BETA: f32 = 3.0;
const KAPPA: f32 = 1.02;
/// Least-squares fits.
const FITS: usize = 2;

/// Groups that are worked on at once, one in each lane of a vector.
const LANES: usize = 16;
type Lanes = [f32; LANES];

/// Added and taken away again, it rounds a number below 2^22 to the nearest whole one.
const ROUNDER: f32 = 12_582_912.0;

/// Finds the grids of a row's groups.
pub(crate) struct Hqq {
    /// The numbers of as many groups as there are lanes: the first of each, the second of each, …
    x: Vec<Lanes>,
}

impl Hqq {
    pub(crate) fn new(group: usize) -> Self {
        Hqq { x: vec![[0.0; LANES]; group] }
    }

    /// The codes of a row, and the grids of its groups.
    #[inline(always)]
    pub(crate) fn row(
        &mut self,
        values: &[f32],
        q: &Quantise,
        codes: &mut [u8],
        grids: &mut Vec<Grid>,
    ) {
        let group = self.x.len();
        let top = (1i32 << q.bits) - 1;
        for (values, codes) in values.chunks(group * LANES).zip(codes.chunks_mut(group * LANES)) {
            // Lanes without a group keep what they had; nobody looks at what they find.
            for (l, values) in values.chunks(group).enumerate() {
                self.x.iter_mut().zip(values).for_each(|(x, v)| x[l] = *v);
            }
            let start = std::array::from_fn(|l| {
                let values = values.chunks(group).nth(l);
                range(values.unwrap_or_default(), top, q.scale)
            });
            let found = self.search(&start, top as f32, q.scale);
            let groups = values.chunks(group).zip(codes.chunks_mut(group));
            for ((values, codes), grid) in groups.zip(found) {
                assign(values, grid, top, codes);
                grids.push(grid);
            }
        }
    }

    #[inline(always)]
    fn search(&self, start: &[Grid; LANES], top: f32, dtype: DType) -> [Grid; LANES] {
        let scale: Lanes = std::array::from_fn(|l| start[l].scale);
        let mut bias: Lanes = std::array::from_fn(|l| start[l].bias);
        let first = self.measure(start, top);
        let mut best = Best { error: first.error, grids: *start };
        let mut beta = BETA;
        for _ in 0..ROUNDS {
            self.move_bias(&scale, &mut bias, top, beta);
            beta *= KAPPA;
        }
        let mut tried: [Grid; LANES] =
            std::array::from_fn(|l| Grid { scale: scale[l], bias: stored(bias[l], dtype) });
        let mut sums = self.measure(&tried, top);
        best.offer(&tried, &sums);
        for _ in 0..FITS {
            tried = std::array::from_fn(|l| sums.fit(l, tried[l], self.x.len(), top, dtype));
            sums = self.measure(&tried, top);
            best.offer(&tried, &sums);
        }
        best.grids
    }

    /// One round of the half-quadratic method: errors are shrunk, and the bias takes the mean of
    /// what was shrunk away.
    #[inline(always)]
    fn move_bias(&self, scale: &Lanes, bias: &mut Lanes, top: f32, beta: f32) {
        let inverse: Lanes = std::array::from_fn(|l| 1.0 / scale[l]);
        let mut sum = [0.0; LANES];
        for x in &self.x {
            for l in 0..LANES {
                let at = (x[l] - bias[l]) * inverse[l];
                let error = at - nearest(at, top);
                let size = error.abs();
                let shrunk = (size - 1.0 / (beta * size.sqrt().sqrt())).max(0.0);
                sum[l] += error - shrunk.copysign(error);
            }
        }
        let n = self.x.len() as f32;
        for l in 0..LANES {
            bias[l] += sum[l] / n * scale[l];
        }
    }

    /// The squared errors on some grids, and what a fit to their codes needs.
    #[inline(always)]
    fn measure(&self, grids: &[Grid; LANES], top: f32) -> Sums {
        let scale: Lanes = std::array::from_fn(|l| grids[l].scale);
        let bias: Lanes = std::array::from_fn(|l| grids[l].bias);
        let inverse: Lanes = std::array::from_fn(|l| 1.0 / scale[l]);
        let mut sums = Sums::default();
        for x in &self.x {
            for l in 0..LANES {
                let value = x[l] - bias[l];
                let code = nearest(value * inverse[l], top);
                let error = value - code * scale[l];
                // Around the middle, so that little cancels.
                let code = code - top * 0.5;
                sums.error[l] += error * error;
                sums.value[l] += value;
                sums.code[l] += code;
                sums.code_code[l] += code * code;
                sums.value_code[l] += value * code;
            }
        }
        sums
    }
}

#[inline(always)]
fn nearest(x: f32, top: f32) -> f32 {
    // Between these bounds before it is rounded, so that the trick holds.
    (x.max(0.0).min(top) + ROUNDER) - ROUNDER
}

/// Sums over the numbers of each group, taken from the bias, and over their codes.
#[derive(Default)]
struct Sums {
    error: Lanes,
    value: Lanes,
    code: Lanes,
    code_code: Lanes,
    value_code: Lanes,
}

impl Sums {
    /// The grid with the least squared error for the codes that `old` gives.
    #[inline(always)]
    fn fit(&self, l: usize, old: Grid, n: usize, top: f32, dtype: DType) -> Grid {
        let n = n as f32;
        let spread = n * self.code_code[l] - self.code[l] * self.code[l];
        let scale = (n * self.value_code[l] - self.code[l] * self.value[l]) / spread;
        let middle = (self.value[l] - scale * self.code[l]) / n;
        Grid {
            scale: stored(scale, dtype),
            bias: stored(old.bias + middle - scale * top * 0.5, dtype),
        }
    }
}

/// The grid of least squared error for each group so far.
struct Best {
    error: Lanes,
    grids: [Grid; LANES],
}

impl Best {
    /// Groups whose numbers are all equal have a scale of zero and errors that are not numbers,
    /// which are never the least.
    #[inline(always)]
    fn offer(&mut self, tried: &[Grid; LANES], sums: &Sums) {
        let so_far = self.error.iter_mut().zip(&mut self.grids);
        for ((least, best), (error, grid)) in so_far.zip(sums.error.iter().zip(tried)) {
            if error < least {
                (*least, *best) = (*error, *grid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::min_max::affine;
    use crate::recipe::{Group, Method};

    const Q: Quantise = Quantise {
        bits: 4,
        group: Group::Size(32),
        symmetric: false,
        scale: DType::F16,
        method: Method::Hqq,
    };

    fn squared_error(values: &[f32], grid: Grid, codes: &[u8]) -> f64 {
        let back = codes.iter().map(|c| f32::from(*c) * grid.scale + grid.bias);
        values.iter().zip(back).map(|(x, y)| f64::from(x - y).powi(2)).sum()
    }

    /// Numbers that are spread like a bell.
    fn bell(n: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (0..3).map(|i| ((state >> (10 + 16 * i)) & 0xffff) as f32 / 65536.0 - 0.5).sum::<f32>()
        };
        (0..n).map(|_| random() * 0.02).collect()
    }

    #[test]
    fn no_group_is_worse_than_by_min_max_and_most_are_better() {
        // Rows that fill their lanes, and rows that don't.
        for n_groups in [1, 5, 16, 203] {
            let x = bell(32 * n_groups);
            let (mut codes, mut grids) = (vec![0; x.len()], vec![]);
            Hqq::new(32).row(&x, &Q, &mut codes, &mut grids);
            assert_eq!(grids.len(), n_groups);
            let (mut before, mut after) = (0.0, 0.0);
            for ((x, codes), grid) in x.chunks(32).zip(codes.chunks(32)).zip(grids) {
                let mut plain_codes = vec![0; 32];
                let plain = affine(x, 4, DType::F16, &mut plain_codes);
                let (plain, moved) =
                    (squared_error(x, plain, &plain_codes), squared_error(x, grid, codes));
                assert!(moved <= plain * (1.0 + 1e-5), "{moved} {plain}");
                before += plain;
                after += moved;
            }
            let least = if n_groups > 100 { 0.95 } else { 1.0 };
            assert!(after < before * least, "{after} {before}");
        }
    }

    #[test]
    fn groups_without_a_range_or_without_numbers_are_as_min_max_makes_them() {
        for odd in [0.0, 0.25, f32::NAN, f32::INFINITY] {
            let mut x = bell(64);
            x[32..].fill(odd);
            let (mut codes, mut grids) = (vec![0; 64], vec![]);
            Hqq::new(32).row(&x, &Q, &mut codes, &mut grids);
            let mut plain = vec![0; 32];
            let want = affine(&x[32..], 4, DType::F16, &mut plain);
            assert_eq!(format!("{:?}", grids[1]), format!("{want:?}"));
            assert_eq!(codes[32..], plain);
            assert!(grids[0].scale > 0.0);
        }
    }
}
