//! The range of a group, divided evenly.

use half::{bf16, f16};
use lapidary_program::DType;

/// The scale and the bias of a group, as they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grid {
    pub scale: f32,
    pub bias: f32,
}

/// Rounds to a stored type; what overflows it is kept at its largest number.
#[inline(always)]
pub(crate) fn stored(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(x.clamp(-65504.0, 65504.0)).to_f32(),
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// Codes around zero. Four bits and fewer follow GGUF's Q4_0: the number of largest magnitude is
/// met exactly by the code that has no opposite, so that checkpoints trained for that grid lose
/// nothing. Eight bits follow Q8_0: the largest magnitude is 127 steps away.
#[inline(always)]
pub(crate) fn symmetric(values: &[f32], bits: u8, dtype: DType, codes: &mut [u8]) -> Grid {
    let offset = 1i32 << (bits - 1);
    let largest = values.iter().copied().fold(0.0f32, |m, x| if x.abs() > m.abs() { x } else { m });
    let top = (1i32 << bits) - 1;
    let exact = if bits == 8 { largest.abs() / 127.0 } else { largest / -(offset as f32) };
    let inverse = if exact == 0.0 { 0.0 } else { 1.0 / exact };
    for (code, x) in codes.iter_mut().zip(values) {
        let q = if bits == 8 {
            (x * inverse).round() as i32 + offset
        } else {
            (x * inverse + offset as f32 + 0.5) as i32
        };
        *code = q.clamp(0, top) as u8;
    }
    Grid { scale: stored(exact, dtype), bias: 0.0 }
}

/// Codes from the least to the greatest number of the group.
#[inline(always)]
pub(crate) fn affine(values: &[f32], bits: u8, dtype: DType, codes: &mut [u8]) -> Grid {
    let top = (1i32 << bits) - 1;
    let grid = range(values, top, dtype);
    assign(values, grid, top, codes);
    grid
}

/// The grid whose first code is the least number of the group, and whose last is the greatest.
#[inline(always)]
pub(crate) fn range(values: &[f32], top: i32, dtype: DType) -> Grid {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    Grid { scale: stored((greatest - least) / top as f32, dtype), bias: stored(least, dtype) }
}

/// The nearest code of each number on a grid.
#[inline(always)]
pub(crate) fn assign(values: &[f32], grid: Grid, top: i32, codes: &mut [u8]) {
    let inverse = if grid.scale == 0.0 { 0.0 } else { 1.0 / grid.scale };
    for (code, x) in codes.iter_mut().zip(values) {
        *code = (((x - grid.bias) * inverse).round() as i32).clamp(0, top) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect()
    }

    #[test]
    fn the_error_is_at_most_half_a_step() {
        for bits in [2u8, 3, 4, 5, 6, 8] {
            let x = values(32);
            let mut codes = vec![0; 32];
            let grid = affine(&x, bits, DType::F32, &mut codes);
            for (x, c) in x.iter().zip(&codes) {
                let back = f32::from(*c) * grid.scale + grid.bias;
                assert!((x - back).abs() <= grid.scale * 0.5 + 1e-6, "{bits} bits");
            }
        }
    }

    #[test]
    fn four_bits_meet_the_largest_number_exactly() {
        let mut x = values(32);
        x[7] = -0.8;
        let mut codes = vec![0; 32];
        let grid = symmetric(&x, 4, DType::F32, &mut codes);
        assert_eq!(codes[7], 0);
        assert!((-8.0 * grid.scale - -0.8).abs() < 1e-6);
    }

    #[test]
    fn groups_of_zeros_and_of_one_number_are_exact() {
        let mut codes = vec![9; 8];
        let grid = symmetric(&[0.0; 8], 4, DType::F16, &mut codes);
        assert!(codes.iter().all(|c| f32::from(*c) * grid.scale == 0.0 || grid.scale == 0.0));
        let grid = affine(&[0.25; 8], 4, DType::F16, &mut codes);
        assert!(codes.iter().all(|c| f32::from(*c) * grid.scale + grid.bias == 0.25));
    }
}
