//! How a weight's numbers are written: dense, or quantised in one representation for all sources.
//!
//! A quantised row of `K` elements holds `K` unsigned codes of `bits` bits, packed low-first along
//! `K` (code `k` occupies bits `k·bits .. (k+1)·bits` of the row's byte string), and one scale, and
//! in the affine case one bias, per group of `group` codes:
//!
//! ```text
//! w[k] = (code[k] − offset) · scale[k / group]  (+ bias[k / group])
//! ```
//!
//! The product is rounded to `f32` before the bias is added; nothing is fused. Scales are floats,
//! or *nested*: a byte per group times a float per `per` groups, which is what GGUF's K-quants are,
//! so that they keep their size and their exact values.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// How the scales (and biases) of a quantised weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum ScaleFormat {
    /// One float per group.
    Plain {
        /// `f32`, `f16` or `bf16`.
        dtype: DType,
    },
    /// One byte per group, times one float per `per` groups.
    Nested {
        /// Groups that share one float.
        per: u32,
        /// `i8` or `u8`.
        sub: DType,
        /// `f32`, `f16` or `bf16`.
        dtype: DType,
    },
}

/// The layout of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantLayout {
    /// Bits of one code, 2 to 8.
    pub bits: u8,
    /// Codes along `K` that share a scale; `K` itself for one scale per row.
    pub group: u32,
    /// Subtracted from every code: `2^(bits−1)` for symmetric weights, 0 for most affine ones.
    pub offset: u8,
    /// How scales and biases are stored.
    pub scale: ScaleFormat,
    /// Whether there is a bias per group.
    pub affine: bool,
}

/// How a weight's numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// One number after another.
    Dense(DType),
    /// Codes, scales and perhaps biases.
    Quant(QuantLayout),
}

impl QuantLayout {
    /// Symmetric codes with one float scale per group.
    pub const fn symmetric(bits: u8, group: u32, dtype: DType) -> Self {
        let offset = 1 << (bits - 1);
        QuantLayout { bits, group, offset, scale: ScaleFormat::Plain { dtype }, affine: false }
    }

    /// Codes with one float scale and one float bias per group.
    pub const fn affine(bits: u8, group: u32, dtype: DType) -> Self {
        QuantLayout { bits, group, offset: 0, scale: ScaleFormat::Plain { dtype }, affine: true }
    }

    /// Bytes that hold the codes of one row.
    pub const fn row_bytes(&self, cols: usize) -> usize {
        (cols * self.bits as usize).div_ceil(8)
    }

    /// Scales of one row.
    pub const fn groups(&self, cols: usize) -> usize {
        cols / self.group as usize
    }

    /// Floats of one row when scales are nested, else none.
    pub const fn super_groups(&self, cols: usize) -> usize {
        match self.scale {
            ScaleFormat::Plain { .. } => 0,
            ScaleFormat::Nested { per, .. } => self.groups(cols) / per as usize,
        }
    }
}

impl Encoding {
    /// A short name for people: `bf16`, `q4 g32`, `q6 g16x16`.
    pub fn label(&self) -> String {
        match self {
            Encoding::Dense(d) => d.name().to_string(),
            Encoding::Quant(q) => {
                let nested = match q.scale {
                    ScaleFormat::Plain { dtype } => dtype.name().to_string(),
                    ScaleFormat::Nested { per, dtype, .. } => format!("x{per} {}", dtype.name()),
                };
                let kind = if q.affine { "affine" } else { "sym" };
                format!("q{} g{} {kind} {nested}", q.bits, q.group)
            }
        }
    }
}

/// Packs codes low-first along the row; the inverse of [`unpack_codes`].
pub(crate) fn pack_codes(bits: u8, codes: &[u8], out: &mut [u8]) {
    match bits {
        8 => out[..codes.len()].copy_from_slice(codes),
        4 => {
            for (byte, pair) in out.iter_mut().zip(codes.chunks(2)) {
                *byte = pair[0] | pair.get(1).map_or(0, |high| high << 4);
            }
        }
        _ => {
            out.fill(0);
            for (k, &code) in codes.iter().enumerate() {
                let bit = k * bits as usize;
                let wide = u16::from(code) << (bit % 8);
                out[bit / 8] |= (wide & 0xff) as u8;
                if wide > 0xff {
                    out[bit / 8 + 1] |= (wide >> 8) as u8;
                }
            }
        }
    }
}

/// Unpacks the codes of one row.
pub(crate) fn unpack_codes(bits: u8, packed: &[u8], codes: &mut [u8]) {
    match bits {
        8 => codes.copy_from_slice(&packed[..codes.len()]),
        4 => {
            for (pair, byte) in codes.chunks_mut(2).zip(packed) {
                pair[0] = byte & 0xf;
                if let Some(high) = pair.get_mut(1) {
                    *high = byte >> 4;
                }
            }
        }
        _ => {
            // Eight codes fill `bits` bytes.
            let mask = (1u64 << bits) - 1;
            for (codes, packed) in codes.chunks_mut(8).zip(packed.chunks(bits.into())) {
                let mut word = [0u8; 8];
                word[..packed.len()].copy_from_slice(packed);
                let mut word = u64::from_le_bytes(word);
                for code in codes {
                    *code = (word & mask) as u8;
                    word >>= bits;
                }
            }
        }
    }
}

impl QuantLayout {
    /// Packs one row of codes, as a weight's `Data` part stores it.
    pub fn pack_row(&self, codes: &[u8], out: &mut [u8]) {
        assert_eq!(out.len(), self.row_bytes(codes.len()), "row bytes");
        pack_codes(self.bits, codes, out);
    }

    /// Unpacks one row of codes.
    pub fn unpack_row(&self, packed: &[u8], codes: &mut [u8]) {
        assert_eq!(packed.len(), self.row_bytes(codes.len()), "row bytes");
        unpack_codes(self.bits, packed, codes);
    }
}

#[cfg(test)]
mod tests {
    use super::{pack_codes, unpack_codes};

    #[test]
    fn codes_round_trip_at_every_width() {
        for bits in 2..=8u8 {
            for n in [1usize, 2, 3, 7, 8, 31, 32, 33, 256] {
                let mask = if bits == 8 { 0xff } else { (1u8 << bits) - 1 };
                let codes: Vec<u8> = (0..n).map(|i| (i * 37 + 11) as u8 & mask).collect();
                let mut packed = vec![0; (n * bits as usize).div_ceil(8)];
                pack_codes(bits, &codes, &mut packed);
                let mut back = vec![0; n];
                unpack_codes(bits, &packed, &mut back);
                assert_eq!(codes, back, "{bits} bits, {n} codes");
            }
        }
    }

    #[test]
    fn nibbles_are_low_first() {
        let mut packed = [0; 2];
        pack_codes(4, &[1, 2, 3, 4], &mut packed);
        assert_eq!(packed, [0x21, 0x43]);
    }
}
