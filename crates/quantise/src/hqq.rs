//! Half-quadratic quantisation: the bias of a group moves so that a few large errors count less
//! than many small ones (an `l_p` norm with `p < 1`), by alternating between a shrinkage of the
//! error and a mean. Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning
//! Models", 2023.

use lapidary_program::DType;

use crate::min_max::{Grid, affine, assign, stored};

const P: f32 = 0.7;
const ROUNDS: usize = 20;
/// How strongly errors are shrunk in the first round, relative to the step of the group, and how
/// that grows.
const BETA: f32 = 3.0;
const KAPPA: f32 = 1.01;

/// Codes with a bias between scale and range of [`affine`]; the better of the two by `l_p` error.
pub(crate) fn hqq(values: &[f32], bits: u8, dtype: DType, codes: &mut [u8]) -> Grid {
    let top = (1i32 << bits) - 1;
    let start = affine(values, bits, dtype, codes);
    if start.scale == 0.0 || !start.scale.is_finite() {
        return start;
    }
    let scale = start.scale;
    let mut best = (error(values, start, codes), start);
    let mut bias = start.bias;
    let mut beta = BETA;
    let mut work = codes.to_vec();
    for _ in 0..ROUNDS {
        // In units of the step, so that one beta serves weights of every size.
        let mut sum = 0.0f64;
        for (x, code) in values.iter().zip(&work) {
            let on_grid = f32::from(*code) * scale;
            let e = (x - on_grid - bias) / scale;
            let shrunk = e.signum() * (e.abs() - e.abs().powf(P - 1.0) / beta).max(0.0);
            sum += f64::from(x - shrunk * scale - on_grid);
        }
        bias = (sum / values.len() as f64) as f32;
        let grid = Grid { scale, bias: stored(bias, dtype) };
        assign(values, grid, top, &mut work);
        let e = error(values, grid, &work);
        if e < best.0 {
            best = (e, grid);
            codes.copy_from_slice(&work);
        }
        beta *= KAPPA;
    }
    best.1
}

fn error(values: &[f32], grid: Grid, codes: &[u8]) -> f32 {
    values
        .iter()
        .zip(codes)
        .map(|(x, c)| (x - (f32::from(*c) * grid.scale + grid.bias)).abs().powf(P))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_worse_than_min_max() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A sum of three is close enough to a bell.
            (0..3).map(|i| ((state >> (10 + 16 * i)) & 0xffff) as f32 / 65536.0 - 0.5).sum::<f32>()
        };
        let mut better = 0;
        for _ in 0..200 {
            let x: Vec<f32> = (0..32).map(|_| random() * 0.02).collect();
            let (mut a, mut b) = (vec![0; 32], vec![0; 32]);
            let plain = affine(&x, 4, DType::F16, &mut a);
            let moved = hqq(&x, 4, DType::F16, &mut b);
            let (plain, moved) = (error(&x, plain, &a), error(&x, moved, &b));
            assert!(moved <= plain);
            better += usize::from(moved < plain);
        }
        assert!(better > 100, "{better} of 200 groups gained");
    }
}
