//! Weight matrices in the layout that the kernels read.
//!
//! All kinds hold *panels*: sixteen rows side by side, `[panel][k][16]`, so that one vector load
//! takes the `k`-th weight of sixteen outputs and each output has a lane of its own. A sum then
//! runs along `k` in one fixed order, whatever the number of tokens, threads or lanes: a row of a
//! 512-token chunk and a single decoded token get the same bits.
//!
//! A new kind of weight (int4, int8) is a variant here and a file beside this one.

mod float;
mod product;

use half::{bf16, f16};
use lapidary_backend::Result;
use lapidary_program::{DType, Encoding, Weight, WeightDecl};

use crate::simd::{Isa, LANES};
use crate::workers::Workers;

pub(crate) use float::Panels;
pub(crate) use product::{Product, ProductKernel, Strided};

/// One or more matrices `[rows, cols]` of one weight, packed.
pub(crate) enum PackedWeight {
    /// Stored as `f32`, or quantised.
    F32(Panels<f32>),
    /// Stored as `f16`.
    F16(Panels<f16>),
    /// Stored as `bf16`.
    Bf16(Panels<bf16>),
}

/// Rows and columns of a packed weight, and how many such matrices there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixShape {
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
}

/// Where and how a product is computed.
#[derive(Clone, Copy)]
pub(crate) struct Cpu<'a> {
    pub isa: Isa,
    pub workers: &'a Workers,
}

impl MatrixShape {
    /// `[rows, cols]`, or `[count, rows, cols]` for experts.
    pub(crate) fn of(decl: &WeightDecl) -> Self {
        let count = if decl.shape.len() > 2 { decl.shape[0] as usize } else { 1 };
        MatrixShape { count, rows: decl.rows() / count, cols: decl.cols() }
    }

    /// Panels of one matrix.
    pub(crate) fn n_panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Numbers that the panels of all matrices hold, padding included.
    pub(crate) fn n_packed(&self) -> usize {
        self.count * self.n_panels() * LANES * self.cols
    }
}

impl PackedWeight {
    /// Bytes that `pack` takes.
    pub(crate) fn size_bytes(decl: &WeightDecl) -> u64 {
        let element = match decl.encoding {
            Encoding::Dense(DType::F16 | DType::Bf16) => 2,
            _ => 4,
        };
        MatrixShape::of(decl).n_packed() as u64 * element
    }

    /// Packs a weight.
    pub(crate) fn pack(weight: &Weight<'_>, workers: &Workers) -> Result<Self> {
        Ok(match weight.decl.encoding {
            Encoding::Dense(DType::F16) => Self::F16(Panels::pack(weight, workers)?),
            Encoding::Dense(DType::Bf16) => Self::Bf16(Panels::pack(weight, workers)?),
            _ => Self::F32(Panels::pack(weight, workers)?),
        })
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> MatrixShape {
        match self {
            Self::F32(p) => p.shape(),
            Self::F16(p) => p.shape(),
            Self::Bf16(p) => p.shape(),
        }
    }

    /// One row of the first matrix, as it was before packing.
    pub(crate) fn row_f32(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::F32(p) => p.row_f32(row, out),
            Self::F16(p) => p.row_f32(row, out),
            Self::Bf16(p) => p.row_f32(row, out),
        }
    }

    /// `x [T, cols] → y [T, rows]`: `x · Wᵀ (+ b)` with the matrix at `index`.
    pub(crate) fn matmul(
        &self,
        cpu: Cpu<'_>,
        index: usize,
        bias: Option<&[f32]>,
        x: &[f32],
        y: &mut [f32],
    ) {
        match self {
            Self::F32(p) => p.matmul(cpu, index, bias, x, y),
            Self::F16(p) => p.matmul(cpu, index, bias, x, y),
            Self::Bf16(p) => p.matmul(cpu, index, bias, x, y),
        }
    }
}
