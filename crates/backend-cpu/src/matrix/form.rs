//! How a quantised weight stands in memory.
//!
//! A panel is sixteen rows. Its codes come in *blocks* of 32 columns, a block in eight *chunks* of
//! 16 rows × 4 columns, one byte per code: a chunk is what one integer dot instruction reads.
//! Narrow codes share bytes within a block:
//!
//! - 4 bits: 4 × 64 bytes; chunk `i` in the low nibbles of the `i`-th, chunk `i + 4` in the high.
//! - 5 bits: the same for the low four bits, then 64 bytes whose bit `c` belongs to chunk `c`.
//! - 6 bits: the same for the low four bits, then 2 × 64 bytes; of the `i`-th, bits `2s` and
//!   `2s + 1` belong to chunk `4i + s`.
//! - 8 bits: 8 × 64 bytes.
//!
//! Codes of 2 and 3 bits are kept as 4, codes of 7 bits as 8. Before the codes of a panel stand its
//! scales `[group][16]`, its biases, super-scales and super-biases, each as stored, so that a packed
//! weight is as large as the stored one, and each part starts on a cache line. They are read first,
//! so a panel is read from its start to its end, as the machine foresees it.

use lapidary_program::{DType, Encoding, Part, QuantLayout, ScaleFormat, WeightDecl};

use super::activations::BLOCK;
use crate::simd::LANES;

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 4 * LANES;
/// Chunks of a block.
pub(crate) const CHUNKS: usize = BLOCK / 4;
/// Where parts of a panel start.
const LINE: usize = 64;
/// The low nibbles of four codes.
pub(crate) const LOW: u32 = 0x0f0f_0f0f;

/// Bits of a code in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Four,
    Five,
    Six,
    Eight,
}

/// The layout of one panel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Form {
    pub layout: QuantLayout,
    pub width: Width,
    pub cols: usize,
    pub n_blocks: usize,
    /// Scales along a row.
    pub n_groups: usize,
    /// Whether the two halves of a block may have different scales.
    pub halves: bool,
    /// Where codes start, after all scales: a panel is read from its start to its end.
    pub codes: usize,
    pub scales: usize,
    pub biases: usize,
    pub super_scales: usize,
    pub super_biases: usize,
    pub panel_bytes: usize,
}

impl Width {
    fn of(bits: u8) -> Self {
        match bits {
            ..=4 => Width::Four,
            5 => Width::Five,
            6 => Width::Six,
            _ => Width::Eight,
        }
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(self) -> usize {
        CHUNK
            * match self {
                Width::Four => 4,
                Width::Five => 5,
                Width::Six => 6,
                Width::Eight => 8,
            }
    }
}

impl Form {
    /// The form of a weight, if it is quantised and its groups fit blocks.
    pub(crate) fn of(decl: &WeightDecl) -> Option<Self> {
        let Encoding::Quant(layout) = decl.encoding else { return None };
        let (cols, group) = (decl.cols(), layout.group as usize);
        let n_groups = layout.groups(cols);
        if n_groups > 1 && !group.is_multiple_of(BLOCK / 2) {
            return None;
        }
        let (width, n_blocks) = (Width::of(layout.bits), cols.div_ceil(BLOCK));
        let mut at = 0;
        let mut part = |part| {
            let start = at;
            if let Some((dtype, shape)) = decl.part_layout(part) {
                let per_row = shape.last().map_or(0, |n| *n as usize);
                at += (per_row * LANES * dtype.size_bytes()).next_multiple_of(LINE);
            }
            start
        };
        let (scales, biases) = (part(Part::Scale), part(Part::Bias));
        let (super_scales, super_biases) = (part(Part::SuperScale), part(Part::SuperBias));
        let halves = n_groups > 1 && !group.is_multiple_of(BLOCK);
        Some(Form {
            layout,
            width,
            cols,
            n_blocks,
            n_groups,
            halves,
            codes: at,
            scales,
            biases,
            super_scales,
            super_biases,
            panel_bytes: at + n_blocks * width.block_bytes(),
        })
    }

    /// Columns that surely share a scale.
    pub(crate) fn unit(&self) -> usize {
        if self.halves { BLOCK / 2 } else { BLOCK }
    }

    /// The group of a column.
    pub(crate) fn group_of(&self, col: usize) -> usize {
        (col / self.layout.group as usize).min(self.n_groups - 1)
    }

    /// Writes the codes of one row into its panel.
    pub(crate) fn put_codes(&self, codes: &[u8], lane: usize, panel: &mut [u8]) {
        let block_bytes = self.width.block_bytes();
        let blocks = panel[self.codes..].chunks_exact_mut(block_bytes);
        let (whole, rest) = codes.as_chunks::<BLOCK>();
        let mut last = [0u8; BLOCK];
        last[..rest.len()].copy_from_slice(rest);
        for (out, codes) in blocks.zip(whole.iter().chain(std::iter::once(&last))) {
            let (words, _) = codes.as_chunks::<4>();
            let w: [u32; CHUNKS] = std::array::from_fn(|c| u32::from_le_bytes(words[c]));
            let (out, _) = out.as_chunks_mut::<4>();
            let mut put = |line: usize, word: u32| out[line * LANES + lane] = word.to_le_bytes();
            if self.width == Width::Eight {
                w.iter().enumerate().for_each(|(c, word)| put(c, *word));
                continue;
            }
            for i in 0..4 {
                put(i, w[i] & LOW | (w[i + 4] & LOW) << 4);
            }
            let high = |c: usize| w[c] >> 4 & LOW;
            match self.width {
                Width::Five => put(4, (0..CHUNKS).fold(0, |p, c| p | high(c) << c)),
                Width::Six => {
                    for i in 0..2 {
                        put(4 + i, (0..4).fold(0, |p, s| p | high(4 * i + s) << (2 * s)));
                    }
                }
                Width::Four | Width::Eight => {}
            }
        }
    }

    /// The codes of one row of one block of a panel.
    pub(crate) fn take_codes(&self, b: usize, panel: &[u8], lane: usize, codes: &mut [u8; BLOCK]) {
        let block_bytes = self.width.block_bytes();
        let (words, _) = panel[self.codes + b * block_bytes..][..block_bytes].as_chunks::<4>();
        let word = |line: usize| u32::from_le_bytes(words[line * LANES + lane]);
        let (codes, _) = codes.as_chunks_mut::<4>();
        for (c, codes) in codes.iter_mut().enumerate() {
            let low = || word(c % 4) >> (c / 4 * 4) & LOW;
            let made = match self.width {
                Width::Four => low(),
                Width::Five => low() | (word(4) >> c & 0x0101_0101) << 4,
                Width::Six => low() | (word(4 + c / 4) >> (2 * (c % 4)) & 0x0303_0303) << 4,
                Width::Eight => word(c),
            };
            *codes = made.to_le_bytes();
        }
    }

    /// The scale or, from its own parts, the bias of one row and group.
    pub(crate) fn factor(&self, panel: &[u8], lane: usize, group: usize, bias: bool) -> f32 {
        let (own, sup) =
            if bias { (self.biases, self.super_biases) } else { (self.scales, self.super_scales) };
        let at = |start: usize, dtype: DType, i: usize| {
            let size = dtype.size_bytes();
            let first = start + (i * LANES + lane) * size;
            let mut value = [0.0];
            dtype.decode_f32(&panel[first..first + size], &mut value);
            value[0]
        };
        match self.layout.scale {
            ScaleFormat::Plain { dtype } => at(own, dtype, group),
            ScaleFormat::Nested { per, sub, dtype } => {
                at(own, sub, group) * at(sup, dtype, group / per as usize)
            }
        }
    }
}

/// Copies a part of a weight's rows, `[row][n]`, into a panel's `[n][16]`.
pub(crate) fn put_part(size: usize, rows: &[&[u8]], out: &mut [u8]) {
    for (lane, row) in rows.iter().enumerate() {
        for (i, value) in row.chunks_exact(size).enumerate() {
            let at = (i * LANES + lane) * size;
            out[at..at + size].copy_from_slice(value);
        }
    }
}
