//! Weights on the device as they are stored, part by part.

use lapidary_program::{DType, Encoding, Part, ScaleFormat, WeightDecl};

use crate::driver::Arg;

/// Where parts begin.
const ALIGN: usize = 256;

/// Where the parts of a weight stand in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawLayout {
    /// Each part with its start and the bytes of a row.
    pub parts: Vec<(Part, usize, usize)>,
    pub size_bytes: usize,
}

impl RawLayout {
    /// That of so many rows.
    pub(crate) fn new(decl: &WeightDecl, rows: usize) -> Self {
        let (mut at, mut parts) = (0, Vec::new());
        for part in Part::ALL {
            let row_bytes = decl.part_bytes(part) as usize / decl.rows().max(1);
            if row_bytes > 0 {
                parts.push((part, at, row_bytes));
                at = (at + row_bytes * rows).next_multiple_of(ALIGN);
            }
        }
        RawLayout { parts, size_bytes: at }
    }

    fn start(&self, part: Part) -> u64 {
        self.parts.iter().find(|(p, ..)| *p == part).map_or(0, |(_, at, _)| *at as u64)
    }
}

/// `Raw` of `weight.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw {
    data: u64,
    scale: u64,
    bias: u64,
    super_scale: u64,
    super_bias: u64,
    cols: u32,
    bits: u32,
    row_bytes: u32,
    kind: u32,
    group: u32,
    offset: u32,
    affine: u32,
    per: u32,
    is_i8: u32,
    groups: u32,
}

// SAFETY: as `weight.cuh` declares it; ten words after five addresses leave no padding.
#[allow(unsafe_code)]
unsafe impl Arg for Raw {}

/// How kernels call a format of numbers.
fn kind(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 1,
        DType::Bf16 => 2,
        _ => 0,
    }
}

impl Raw {
    /// Numbers of a row.
    pub(crate) fn cols(&self) -> u32 {
        self.cols
    }

    /// A weight whose parts stand at `at`.
    pub(crate) fn new(decl: &WeightDecl, layout: &RawLayout, at: u64) -> Self {
        let row_bytes = layout.parts.first().map_or(0, |(.., bytes)| *bytes as u32);
        let raw = Raw { data: at, cols: decl.cols() as u32, row_bytes, ..Raw::default() };
        match decl.encoding {
            Encoding::Dense(dtype) => Raw { kind: kind(dtype), ..raw },
            Encoding::Quant(q) => {
                let (per, is_i8, dtype) = match q.scale {
                    ScaleFormat::Plain { dtype } => (0, false, dtype),
                    ScaleFormat::Nested { per, sub, dtype } => (per, sub == DType::I8, dtype),
                };
                Raw {
                    scale: at + layout.start(Part::Scale),
                    bias: at + layout.start(Part::Bias),
                    super_scale: at + layout.start(Part::SuperScale),
                    super_bias: at + layout.start(Part::SuperBias),
                    bits: q.bits.into(),
                    kind: kind(dtype),
                    group: q.group,
                    offset: q.offset.into(),
                    affine: q.affine.into(),
                    per,
                    is_i8: is_i8.into(),
                    groups: q.groups(decl.cols()) as u32,
                    ..raw
                }
            }
        }
    }
}
