//! How a matrix of `linear` stands on the device.
//!
//! A *tile* is eight rows, a *unit* 32 columns of one row; the units of a tile's rows stand side by
//! side, so that eight invocations read 128 bytes at once. A buffer holds three sections:
//!
//! - codes `[tile][unit][quad][row of the tile]` of 16 bytes. Codes of 4 bits are as they are stored,
//!   low first. Bytes have their sign bit turned, and of eight the even ones come first: so a word of
//!   either width meets the same four activations. Other numbers are as they are;
//! - scales `[tile][step][row]`, each with its bias if there is one; a step is what shares a scale;
//! - a power of two for each row, `f32`. Quantised rows are divided by it, through their scales, so
//!   that the largest number of a row is from 1/2 to 1, and what kernels make of it fits `f16`.
//!
//! Codes of 2 and 3 bits are kept as 4, codes of 5 to 7 bits as 8.

use std::ops::Range;

use lapidary_backend::Precision;
use lapidary_program::{DType, Encoding, ScaleFormat, WeightDecl};

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 8;
/// Columns of a unit.
pub(crate) const UNIT: usize = 32;
/// Where sections may begin.
const ALIGN: u64 = 256;

/// What stands for the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codes {
    Four,
    Eight,
    F16,
    Bf16,
    F32,
}

/// How scales are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scales {
    F16,
    Bf16,
    F32,
}

/// What shares a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// So many units.
    Units(usize),
    /// Sixteen columns.
    Half,
}

/// Scales of quantised rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Factors {
    pub scales: Scales,
    pub affine: bool,
    pub offset: u8,
    pub step: Step,
}

/// The layout of a matrix, but for its rows. Matrices of the same form may stand in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PackedForm {
    pub codes: Codes,
    /// `None` for numbers that are not quantised.
    pub factors: Option<Factors>,
    pub cols: usize,
}

/// Where the sections of a buffer stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    pub codes: Range<u64>,
    /// Empty without scales.
    pub scales: Range<u64>,
    pub rows: Range<u64>,
}

impl Codes {
    /// Vectors of 16 bytes that hold a unit.
    pub(crate) const fn quads(self) -> usize {
        match self {
            Codes::Four => 1,
            Codes::Eight => 2,
            Codes::F16 | Codes::Bf16 => 4,
            Codes::F32 => 8,
        }
    }

    /// `BITS` of the kernels.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Codes::Four => 4,
            Codes::Eight => 8,
            Codes::F16 => 16,
            Codes::Bf16 => 17,
            Codes::F32 => 32,
        }
    }
}

impl Scales {
    /// `SCALE` of the kernels.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Scales::F16 => 16,
            Scales::Bf16 => 17,
            Scales::F32 => 32,
        }
    }

    pub(crate) const fn size_bytes(self) -> usize {
        match self {
            Scales::F16 | Scales::Bf16 => 2,
            Scales::F32 => 4,
        }
    }
}

impl PackedForm {
    /// The form of a weight, if the kernels can read it: rows of whole vectors, and groups of whole
    /// half units or one for a row.
    pub(crate) fn of(decl: &WeightDecl, precision: Precision) -> Option<Self> {
        let cols = decl.cols();
        if cols == 0 || !cols.is_multiple_of(4) {
            return None;
        }
        let q = match decl.encoding {
            Encoding::Dense(dtype) => {
                let codes = match dtype {
                    DType::F16 => Codes::F16,
                    DType::Bf16 => Codes::Bf16,
                    DType::F32 => Codes::F32,
                    _ => return None,
                };
                return Some(PackedForm { codes, factors: None, cols });
            }
            Encoding::Quant(q) => q,
        };
        let group = q.group as usize;
        let step = if group == cols {
            Step::Units(cols.div_ceil(UNIT))
        } else if group.is_multiple_of(UNIT) {
            Step::Units(group / UNIT)
        } else if group == UNIT / 2 {
            Step::Half
        } else {
            return None;
        };
        let scales = match q.scale {
            ScaleFormat::Plain { dtype: DType::F16 } => Scales::F16,
            ScaleFormat::Plain { dtype: DType::Bf16 } => Scales::Bf16,
            ScaleFormat::Plain { .. } => Scales::F32,
            // A byte times a half float needs more bits than a half float has.
            ScaleFormat::Nested { .. } if precision == Precision::Exact => Scales::F32,
            ScaleFormat::Nested { .. } => Scales::F16,
        };
        let codes = if q.bits <= 4 { Codes::Four } else { Codes::Eight };
        let factors = Factors { scales, affine: q.affine, offset: q.offset, step };
        Some(PackedForm { codes, factors: Some(factors), cols })
    }

    pub(crate) const fn units(&self) -> usize {
        self.cols.div_ceil(UNIT)
    }

    /// Units that share a scale; 1 if that is half of one.
    pub(crate) const fn units_per_step(&self) -> usize {
        match self.factors {
            Some(Factors { step: Step::Units(n), .. }) => n,
            _ => 1,
        }
    }

    /// Scales along a row.
    pub(crate) const fn steps(&self) -> usize {
        match self.factors {
            None => 0,
            Some(Factors { step: Step::Units(n), .. }) => self.units().div_ceil(n),
            Some(Factors { step: Step::Half, .. }) => self.units() * 2,
        }
    }

    /// Bytes of one scale, with its bias.
    pub(crate) const fn factor_bytes(&self) -> usize {
        match self.factors {
            None => 0,
            Some(f) => f.scales.size_bytes() * if f.affine { 2 } else { 1 },
        }
    }

    /// Bytes of the codes, scales and powers of one tile.
    pub(crate) const fn tile_bytes(&self) -> [usize; 3] {
        [
            self.units() * self.codes.quads() * 16 * TILE_ROWS,
            self.steps() * self.factor_bytes() * TILE_ROWS,
            4 * TILE_ROWS,
        ]
    }

    /// Where the sections of so many tiles stand.
    pub(crate) fn sections(&self, tiles: usize) -> Sections {
        let mut at = 0;
        let [codes, scales, rows] = self.tile_bytes().map(|bytes| {
            let section = at..at + (bytes * tiles) as u64;
            at = section.end.next_multiple_of(ALIGN);
            section
        });
        Sections { codes, scales, rows }
    }
}

impl Sections {
    /// Bytes of the whole buffer.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.rows.end
    }
}
