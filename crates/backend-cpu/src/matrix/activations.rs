//! Activations as bytes: `x ≈ code · scale`, a scale per token and block of 32 channels.
//!
//! Integer kernels multiply these codes with those of the weights. The scale is the block's largest
//! magnitude over 127, so no channel of a block moves by more than 1/254 of that. A block that
//! holds something that is not finite gets a scale that is not a number: it reaches the results.
#![allow(unsafe_code)]

use lapidary_backend::Result;

use super::Cpu;
use crate::aligned::Aligned;
use crate::shared::Shared;
use crate::simd::{Kernel, LANES, Simd, load};

/// Channels that share a scale.
pub(crate) const BLOCK: usize = 32;
/// The largest code.
const LARGEST: f32 = 127.0;
/// Blocks with nothing above this are zeros; its inverse times 127 is still finite.
const NOTHING: f32 = 1e-35;
/// Numbers that are worth a thread of their own.
const ITEM_LEN: usize = 1 << 14;

/// The rows of one product, and what its weights want to know of them.
#[derive(Default)]
pub(crate) struct Activations {
    /// `[token][block][32]`, zeros after the last channel.
    codes: Aligned<i8>,
    /// `[token][block]`.
    scales: Aligned<f32>,
    /// `[token][block][2]`: sums of the codes of each half.
    sums: Aligned<i32>,
    /// `[token][unit]`: where the integer sums begin.
    starts: Aligned<i32>,
    /// `[token][unit]`: the factor of a group's bias.
    shifts: Aligned<f32>,
    /// `[token][channel]` for products of pairs, an even number of channels.
    #[cfg(target_arch = "x86_64")]
    pub(super) halves: Aligned<half::bf16>,
    n_tokens: usize,
    n_blocks: usize,
    units: Units,
}

/// What the kernel needs besides codes and scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Units {
    /// Whether each half of a block has a weight scale of its own.
    pub halves: bool,
    /// What is taken off each code of a weight.
    pub offset: i32,
    /// Whether weights have biases.
    pub affine: bool,
}

/// Rows of activations, as the kernel reads them.
#[derive(Clone, Copy)]
pub(crate) struct ActivationRows<'a> {
    pub codes: &'a [i8],
    pub scales: &'a [f32],
    pub starts: &'a [i32],
    pub shifts: &'a [f32],
    pub n_rows: usize,
    pub n_blocks: usize,
    pub units_per_row: usize,
}

impl Activations {
    /// Bytes for so many tokens of so many channels, at most.
    pub(crate) fn size_bytes(n_tokens: usize, cols: usize) -> u64 {
        let n_blocks = cols.div_ceil(BLOCK);
        (n_tokens * n_blocks * (BLOCK + 4 + 3 * 8)) as u64
    }

    /// Makes the codes of `x [T, cols]`.
    pub(crate) fn quantise(&mut self, cpu: Cpu<'_>, x: &[f32], cols: usize) -> Result<()> {
        let (n_tokens, n_blocks) = (x.len() / cols, cols.div_ceil(BLOCK));
        (self.n_tokens, self.n_blocks) = (n_tokens, n_blocks);
        self.codes.grow(n_tokens * n_blocks * BLOCK)?;
        self.scales.grow(n_tokens * n_blocks)?;
        self.sums.grow(n_tokens * n_blocks * 2)?;
        let codes = Shared::new(&mut self.codes);
        let scales = Shared::new(&mut self.scales);
        let sums = Shared::new(&mut self.sums);
        let per_item = ITEM_LEN.div_ceil(cols.max(1));
        cpu.run(n_tokens.div_ceil(per_item), &|_, item| {
            let tokens = item * per_item..((item + 1) * per_item).min(n_tokens);
            let blocks = tokens.start * n_blocks..tokens.end * n_blocks;
            // SAFETY: each item has tokens of its own.
            let rows = unsafe {
                Rows {
                    x: &x[tokens.start * cols..tokens.end * cols],
                    cols,
                    codes: codes.slice(blocks.start * BLOCK..blocks.end * BLOCK),
                    scales: scales.slice(blocks.clone()),
                    sums: sums.slice(blocks.start * 2..blocks.end * 2),
                }
            };
            cpu.isa.run(rows);
        });
        Ok(())
    }

    /// Derives what a weight with these units wants.
    pub(crate) fn prepare(&mut self, units: Units) -> Result<()> {
        self.units = units;
        let n = self.n_tokens * self.n_blocks;
        let n_units = if units.halves { 2 * n } else { n };
        self.starts.grow(n_units)?;
        self.shifts.grow(n_units)?;
        if units.halves {
            for (start, sum) in self.starts.iter_mut().zip(&self.sums[..2 * n]) {
                *start = -units.offset * sum;
            }
        } else {
            let (sums, _) = self.sums[..2 * n].as_chunks::<2>();
            for (start, sum) in self.starts.iter_mut().zip(sums) {
                *start = -units.offset * (sum[0] + sum[1]);
            }
        }
        if units.affine {
            let (sums, _) = self.sums[..2 * n].as_chunks::<2>();
            let blocks = sums.iter().zip(&self.scales[..n]);
            if units.halves {
                let (shifts, _) = self.shifts.as_chunks_mut::<2>();
                for (shift, (sum, scale)) in shifts.iter_mut().zip(blocks) {
                    *shift = [sum[0] as f32 * scale, sum[1] as f32 * scale];
                }
            } else {
                for (shift, (sum, scale)) in self.shifts.iter_mut().zip(blocks) {
                    *shift = (sum[0] + sum[1]) as f32 * scale;
                }
            }
        }
        Ok(())
    }

    /// Some of the tokens.
    pub(crate) fn rows(&self, tokens: std::ops::Range<usize>) -> ActivationRows<'_> {
        let blocks = tokens.start * self.n_blocks..tokens.end * self.n_blocks;
        let per_block = if self.units.halves { 2 } else { 1 };
        let units = blocks.start * per_block..blocks.end * per_block;
        ActivationRows {
            codes: &self.codes[blocks.start * BLOCK..blocks.end * BLOCK],
            scales: &self.scales[blocks],
            starts: &self.starts[units.clone()],
            shifts: &self.shifts[units],
            n_rows: tokens.len(),
            n_blocks: self.n_blocks,
            units_per_row: self.n_blocks * per_block,
        }
    }

    /// Tokens of the product.
    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }
}

struct Rows<'a> {
    x: &'a [f32],
    cols: usize,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n_blocks = self.cols.div_ceil(BLOCK);
        let (codes, _) = self.codes.as_chunks_mut::<BLOCK>();
        let (sums, _) = self.sums.as_chunks_mut::<2>();
        let blocks = self.x.chunks_exact(self.cols).flat_map(|row| row.chunks(BLOCK));
        debug_assert_eq!(codes.len(), self.x.len() / self.cols * n_blocks);
        for (((x, codes), scale), sums) in blocks.zip(codes).zip(self.scales).zip(sums) {
            (*scale, *sums) = block(s, x, codes);
        }
    }
}

/// The codes of one block; returns its scale and the sums of its halves.
#[inline(always)]
fn block<S: Simd>(s: S, x: &[f32], codes: &mut [i8; BLOCK]) -> (f32, [i32; 2]) {
    let (low, high) = (load(s, x), load(s, x.get(LANES..).unwrap_or(&[])));
    let zero = s.splat(0.0);
    let size = |v| s.max(v, s.sub(zero, v));
    let largest = s.largest(s.max(size(low), size(high)));
    let nothing = largest < NOTHING;
    let inverse = s.splat(if nothing { 0.0 } else { LARGEST / largest });
    let (low, high) = (s.round(s.mul(low, inverse)), s.round(s.mul(high, inverse)));
    // SAFETY: a block has room for twice 16.
    unsafe {
        s.store_i8(codes.as_mut_ptr(), low);
        s.store_i8(codes.as_mut_ptr().add(LANES), high);
    }
    let sums = [s.sum(low), s.sum(high)];
    let scale = if nothing { 0.0 } else { largest / LARGEST };
    // Sums are not finite iff a number was not.
    (scale + (sums[0] + sums[1]) * 0.0, [sums[0] as i32, sums[1] as i32])
}

#[cfg(test)]
mod tests {
    use super::{Activations, BLOCK, Units};
    use crate::matrix::Cpu;
    use crate::simd::Isa;
    use crate::workers::Workers;

    fn codes_of(isa: Isa, x: &[f32], cols: usize) -> Activations {
        let workers = Workers::new(2);
        let mut made = Activations::default();
        made.quantise(Cpu { isa, workers: &workers, exact: false, stop: None }, x, cols).unwrap();
        made
    }

    #[test]
    fn codes_are_within_half_a_step_and_sums_are_their_sums() {
        let (cols, n_tokens) = (83, 5);
        let x: Vec<f32> = (0..cols * n_tokens).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
        for isa in Isa::all() {
            let mut made = codes_of(isa, &x, cols);
            made.prepare(Units { halves: true, offset: 3, affine: true }).unwrap();
            let rows = made.rows(0..n_tokens);
            let n_blocks = cols.div_ceil(BLOCK);
            for (t, row) in x.chunks(cols).enumerate() {
                for (b, block) in row.chunks(BLOCK).enumerate() {
                    let at = t * n_blocks + b;
                    let codes = &rows.codes[at * BLOCK..(at + 1) * BLOCK];
                    let scale = rows.scales[at];
                    for (x, code) in block.iter().zip(codes) {
                        let error = (x - f32::from(*code) * scale).abs();
                        assert!(error <= 0.5001 * scale, "{isa:?}: {x} as {code} · {scale}");
                    }
                    assert!(codes[block.len()..].iter().all(|c| *c == 0), "{isa:?}: padding");
                    for (h, half) in codes.chunks(BLOCK / 2).enumerate() {
                        let sum: i32 = half.iter().map(|c| i32::from(*c)).sum();
                        assert_eq!(rows.starts[2 * at + h], -3 * sum, "{isa:?}");
                        assert_eq!(rows.shifts[2 * at + h], sum as f32 * scale, "{isa:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_not_lost() {
        for isa in Isa::all() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 17, 31, 40] {
                    let mut x = [1.0; 64];
                    x[at] = bad;
                    let made = codes_of(isa, &x, 64);
                    let bad_block = at / BLOCK;
                    assert!(!made.scales[bad_block].is_finite(), "{isa:?}: {bad} at {at}");
                    assert!(made.scales[1 - bad_block].is_finite(), "{isa:?}: {bad} at {at}");
                }
            }
            let made = codes_of(isa, &[0.0, 1e-38, -1e-40, 0.0], 4);
            assert_eq!((made.scales[0], made.sums[0]), (0.0, 0), "{isa:?}");
        }
    }
}
