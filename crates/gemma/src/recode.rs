//! Parts of our representation, made row by row from tensors that others quantised.
//!
//! Nothing is quantised again: codes are reordered and shifted, scales are reordered. What each
//! form means is said in [`crate::torchao`] and [`crate::mlx`], which also check all lengths before
//! they make a [`Recoded`].

use std::ops::Range;

use lapidary_program::{DType, FileBytes, Part, QuantLayout};
use rayon::prelude::*;

use crate::shards::Place;

/// Rows that one task takes at least.
const ROWS_PER_TASK: usize = 16;
/// Codes of one row in one tile of the tiled form.
pub(crate) const TILE_COLS: u64 = 128;
/// Rows of one tile.
pub(crate) const TILE_ROWS: u64 = 8;
/// Words of one row in one tile: four lanes of four.
const ROW_WORDS: usize = 16;

/// A weight whose parts are made when asked for.
pub(crate) struct Recoded {
    /// What is made.
    pub layout: QuantLayout,
    /// Matrices, for experts; 1 otherwise.
    pub matrices: usize,
    /// Rows of each matrix.
    pub rows: usize,
    /// Codes of a row.
    pub cols: usize,
    /// What it is made from.
    pub form: Form,
}

/// How it was written.
pub(crate) enum Form {
    /// Two signed nibbles to a byte, low first; scales and zeros `[group, row]`.
    Nibbles { codes: Place, scale: Place, zero: Place },
    /// Unsigned nibbles in the order in which tensor cores want them; scale and zero side by side
    /// `[group, row, 2]`. Rows and columns are padded.
    Tiles { codes: Place, scale_and_zero: Place, padded_rows: usize, padded_cols: usize },
    /// A signed byte per code; scales and whole zeros `[row / rows_per_scale, group]`.
    Bytes {
        codes: Place,
        scale: Place,
        scale_dtype: DType,
        zero: Option<(Place, DType)>,
        rows_per_scale: usize,
        lowest: i32,
        highest: i32,
    },
    /// Floats of four bits, `e2m1`, two to a byte, low first; scales `[row, group]` of a byte.
    SmallFloats { codes: Place, scale: Place, scales: ByteScale },
}

/// A scale of one byte.
#[derive(Clone, Copy)]
pub(crate) enum ByteScale {
    /// A power of two.
    E8m0,
    /// A float of eight bits.
    E4m3,
}

impl ByteScale {
    /// Half of a scale, which twice a code is multiplied by. `None` if it is not a number.
    fn half(self, byte: u8) -> Option<f32> {
        match self {
            // 2^(byte − 128), down to the subnormals of an f32.
            ByteScale::E8m0 => match byte {
                0 => Some(f32::from_bits(1 << 21)),
                1 => Some(f32::from_bits(1 << 22)),
                255 => None,
                _ => Some(f32::from_bits(u32::from(byte.checked_sub(1)?) << 23)),
            },
            ByteScale::E4m3 => {
                let (exponent, fraction) = ((byte >> 3) & 0xf, f32::from(byte & 7));
                let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
                match exponent {
                    // 2^(exponent − 7)·(1 + fraction / 8); subnormals have exponent 1 and no one.
                    0 => Some(sign * fraction * 0.000_976_562_5),
                    15 if byte & 7 == 7 => None,
                    _ => {
                        let power = u32::from(exponent).checked_add(127 - 11)? << 23;
                        Some(sign * (8.0 + fraction) * f32::from_bits(power))
                    }
                }
            }
        }
    }
}

/// Twice the values of `e2m1`, with 12 added: positive ones, then negative ones.
const E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Bytes that the checks of an import promised are not there.
const SHORT: &str = "its bytes are fewer than its shape says";

impl Recoded {
    /// Rows of all matrices.
    pub fn rows(&self) -> usize {
        self.matrices.saturating_mul(self.rows)
    }

    /// One part of some rows.
    pub fn part(
        &self,
        files: &[FileBytes],
        part: Part,
        rows: Range<usize>,
    ) -> Result<Vec<u8>, String> {
        let row_bytes = match (part, self.layout.affine) {
            (Part::Data, _) => self.layout.row_bytes(self.cols),
            (Part::Scale, _) | (Part::Bias, true) => {
                self.groups().saturating_mul(self.scale_dtype().size_bytes())
            }
            _ => return Err(format!("{part:?} is not stored")),
        };
        if rows.end > self.rows() || row_bytes == 0 {
            return Err(format!("rows {rows:?} of {}", self.rows()));
        }
        let mut out = vec![0u8; rows.len().saturating_mul(row_bytes)];
        out.par_chunks_mut(row_bytes)
            .zip(rows.into_par_iter())
            .with_min_len(ROWS_PER_TASK)
            .try_for_each(|(out, row)| self.row(files, part, row, out))?;
        Ok(out)
    }

    fn groups(&self) -> usize {
        self.layout.groups(self.cols)
    }

    fn scale_dtype(&self) -> DType {
        match self.layout.scale {
            lapidary_program::ScaleFormat::Plain { dtype }
            | lapidary_program::ScaleFormat::Nested { dtype, .. } => dtype,
        }
    }

    fn row(
        &self,
        files: &[FileBytes],
        part: Part,
        row: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        match (&self.form, part) {
            (Form::Nibbles { codes, .. }, Part::Data) => {
                let packed = nth(files, codes, row, out.len()).ok_or(SHORT)?;
                // A signed nibble becomes one with offset 8 when its highest bit is turned.
                out.iter_mut().zip(packed).for_each(|(o, b)| *o = b ^ 0x88);
                Ok(())
            }
            (Form::Nibbles { scale, .. }, Part::Scale) => self.column(files, scale, row, out),
            (Form::Nibbles { zero, .. }, _) => self.column(files, zero, row, out),
            (Form::Tiles { .. }, Part::Data) => self.tiles(files, row, out).ok_or(SHORT.into()),
            (Form::Tiles { .. }, _) => {
                self.tile_scales(files, row, part, out).ok_or(SHORT.into())
            }
            (Form::SmallFloats { codes, .. }, Part::Data) => {
                let packed = nth(files, codes, row, self.cols / 2).ok_or(SHORT)?;
                let nibbles = packed.iter().flat_map(|b| [b & 0xf, b >> 4]);
                let codes: Option<Vec<u8>> =
                    nibbles.map(|n| E2M1.get(usize::from(n)).copied()).collect();
                self.layout.pack_row(&codes.ok_or(SHORT)?, out);
                Ok(())
            }
            (Form::SmallFloats { scale, scales, .. }, _) => {
                let bytes = nth(files, scale, row, self.groups()).ok_or(SHORT)?;
                for (byte, out) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
                    let half = scales.half(*byte).ok_or("one of its scales is not a number")?;
                    *out = half::bf16::from_f32(half).to_le_bytes();
                }
                Ok(())
            }
            (Form::Bytes { .. }, Part::Data) => self.byte_codes(files, row, out),
            (Form::Bytes { .. }, _) => {
                self.byte_scales(files, row, part, out).ok_or(SHORT.into())
            }
        }
    }

    /// The matrix of a row, and its number there.
    fn place(&self, row: usize) -> Option<(usize, usize)> {
        Some((row.checked_div(self.rows)?, row.checked_rem(self.rows)?))
    }

    /// One column of floats `[matrix, group, row]`, which is one row of ours.
    fn column(
        &self,
        files: &[FileBytes],
        floats: &Place,
        row: usize,
        out: &mut [u8],
    ) -> Result<(), String> {
        let (matrix, row) = self.place(row).ok_or(SHORT)?;
        let size = self.scale_dtype().size_bytes();
        let first = matrix.saturating_mul(self.groups());
        for (group, out) in (first..).zip(out.chunks_exact_mut(size)) {
            let at = group.saturating_mul(self.rows).saturating_add(row);
            out.copy_from_slice(nth(files, floats, at, size).ok_or(SHORT)?);
        }
        Ok(())
    }

    /// Codes in the order of the B operand of `m16n8k16`, as `aten::_convert_weight_to_int4pack`
    /// with 8 inner tiles leaves them: `[rows / 8][cols / 128][lane 32][4]` words. Lane
    /// `4·(row % 8) + c` holds of its row, in word `w`, nibble `j`, the code at
    /// `32·w + 8·(j % 4) + 2·c + j / 4`.
    fn tiles(&self, files: &[FileBytes], row: usize, out: &mut [u8]) -> Option<()> {
        let Form::Tiles { codes, padded_rows, padded_cols, .. } = &self.form else { return None };
        let (matrix, row) = self.place(row)?;
        let tile_rows = padded_rows.checked_div(usize::try_from(TILE_ROWS).ok()?)?;
        let tiles = padded_cols.checked_div(usize::try_from(TILE_COLS).ok()?)?;
        let first = matrix.checked_mul(tile_rows)?.checked_add(row / 8)?.checked_mul(tiles)?;
        // A tile of 8 rows is 8 runs of `ROW_WORDS` words; the last tile of a row may be cut off.
        for (tile, out) in (first..).zip(out.chunks_mut(64)) {
            let run = tile.checked_mul(8)?.checked_add(row % 8)?;
            let words = nth(files, codes, run, ROW_WORDS.checked_mul(4)?)?;
            let codes = untile(words.try_into().ok()?);
            out.copy_from_slice(codes.get(..out.len())?);
        }
        Some(())
    }

    /// Scale and zero stand side by side in `[matrix, group, padded row, 2]`.
    fn tile_scales(
        &self,
        files: &[FileBytes],
        row: usize,
        part: Part,
        out: &mut [u8],
    ) -> Option<()> {
        let Form::Tiles { scale_and_zero, padded_rows, padded_cols, .. } = &self.form else {
            return None;
        };
        let (matrix, row) = self.place(row)?;
        let padded_groups = padded_cols.checked_div(usize::try_from(self.layout.group).ok()?)?;
        let size = self.scale_dtype().size_bytes();
        let first = matrix.checked_mul(padded_groups)?;
        for (group, out) in (first..).zip(out.chunks_exact_mut(size)) {
            let pair = group.checked_mul(*padded_rows)?.checked_add(row)?.checked_mul(2)?;
            let at = if part == Part::Bias { pair.checked_add(1)? } else { pair };
            out.copy_from_slice(nth(files, scale_and_zero, at, size)?);
        }
        Some(())
    }

    /// The codes of a row, with the zeros of its groups taken off where there is no bias for them.
    fn byte_codes(&self, files: &[FileBytes], row: usize, out: &mut [u8]) -> Result<(), String> {
        let Form::Bytes { codes, lowest, highest, .. } = &self.form else {
            return Err(SHORT.into());
        };
        let bytes = nth(files, codes, row, self.cols).ok_or(SHORT)?;
        let group = usize::try_from(self.layout.group).unwrap_or(usize::MAX);
        let mut shifted = vec![0u8; self.cols];
        let groups = bytes.chunks(group).zip(shifted.chunks_mut(group)).enumerate();
        for (g, (bytes, shifted)) in groups {
            let zero = if self.layout.affine { 0 } else { self.zero(files, row, g).ok_or(SHORT)? };
            let shift = i32::from(self.layout.offset).saturating_sub(zero);
            for (byte, code) in bytes.iter().zip(shifted) {
                let q = i32::from(byte.cast_signed());
                let fits = u8::try_from(q.saturating_add(shift)).ok();
                *code = fits.filter(|_| (*lowest..=*highest).contains(&q)).ok_or_else(|| {
                    format!("row {row} holds the code {q}, outside {lowest} to {highest}")
                })?;
            }
        }
        self.layout.pack_row(&shifted, out);
        Ok(())
    }

    /// Scales as they are; or, where zeros become biases, both as `f32`.
    fn byte_scales(
        &self,
        files: &[FileBytes],
        row: usize,
        part: Part,
        out: &mut [u8],
    ) -> Option<()> {
        let Form::Bytes { scale, scale_dtype, rows_per_scale, .. } = &self.form else {
            return None;
        };
        let first = row.checked_div(*rows_per_scale)?.checked_mul(self.groups())?;
        let size = scale_dtype.size_bytes();
        for (g, out) in out.chunks_exact_mut(self.scale_dtype().size_bytes()).enumerate() {
            let stored = nth(files, scale, first.checked_add(g)?, size)?;
            if !self.layout.affine {
                out.copy_from_slice(stored);
                continue;
            }
            let mut factor = [0.0];
            scale_dtype.decode_f32(stored, &mut factor);
            let [mut value] = factor;
            if part == Part::Bias {
                let zero = i16::try_from(self.zero(files, row, g)?).ok()?;
                value *= f32::from(zero.checked_neg()?);
            }
            out.copy_from_slice(&value.to_le_bytes());
        }
        Some(())
    }

    /// The zero of one group of one row.
    fn zero(&self, files: &[FileBytes], row: usize, group: usize) -> Option<i32> {
        let Form::Bytes { zero, rows_per_scale, .. } = &self.form else { return None };
        let Some((place, dtype)) = zero else { return Some(0) };
        let first = row.checked_div(*rows_per_scale)?.checked_mul(self.groups())?;
        let bytes = nth(files, place, first.checked_add(group)?, dtype.size_bytes())?;
        let mut value = [0.0];
        dtype.decode_f32(bytes, &mut value);
        let [value] = value;
        whole(value)
    }
}

/// A float that is a whole number of the range of a signed byte.
#[allow(clippy::as_conversions)]
pub(crate) fn whole(value: f32) -> Option<i32> {
    let fits = value.fract() == 0.0 && (-128.0..=127.0).contains(&value);
    fits.then_some(value as i32)
}

/// The `n`-th run of `len` bytes of a tensor.
fn nth<'a>(files: &'a [FileBytes], place: &Place, n: usize, len: usize) -> Option<&'a [u8]> {
    let start = n.checked_mul(len)?;
    place.bytes(files)?.get(start..start.checked_add(len)?)
}

/// The 128 codes of one row of one tile, as nibbles low-first.
///
/// Codes at an even place and the next stand in the same word, 16 bits apart.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]
fn untile(words: &[u8; 64]) -> [u8; 64] {
    let mut codes = [0u8; 64];
    for (i, word) in words.as_chunks::<4>().0.iter().enumerate() {
        let (lane, w) = (i / 4, i % 4);
        let word = u32::from_le_bytes(*word);
        for j in 0..4 {
            let (even, odd) = (word >> (4 * j), word >> (4 * j + 16));
            codes[16 * w + 4 * j + lane] = ((even & 0xf) | ((odd & 0xf) << 4)) as u8;
        }
    }
    codes
}
