//! Weight matrices in the layout that the kernels read.
//!
//! All kinds hold *panels*: sixteen rows side by side, `[panel][k][16]`, so that one vector load
//! takes the `k`-th weight of sixteen outputs and each output has a lane of its own. A sum then
//! runs along `k` in one fixed order, whatever the number of tokens, threads or lanes: a row of a
//! 512-token chunk and a single decoded token get the same bits.
//!
//! Quantised weights keep their codes and scales, four columns of a row together, for integer dot
//! products with activations as bytes; see `form`.

#![allow(unsafe_code)]

mod activations;
mod float;
mod form;
mod integer;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod product;
mod quant;
mod split;
mod unpack;

use std::ops::Range;

use half::{bf16, f16};
use lapidary_backend::{Result, StopFlag};
use lapidary_backend_kit::RowSource;
use lapidary_program::{DType, Encoding, Weight, WeightDecl};

use crate::aligned::{Aligned, Plain};
use crate::pack_cache::MappedBytes;
use crate::shared::Shared;
use crate::simd::{Isa, LANES};
use crate::workers::Workers;

use form::Form;
use quant::QuantPanels;

pub(crate) use activations::Activations;
pub(crate) use float::Panels;
pub(crate) use product::{Element, Product, ProductKernel, Strided};

/// One or more matrices `[rows, cols]` of one weight, packed.
pub(crate) enum PackedWeight {
    /// Stored as `f32`, or quantised in groups that fit no block.
    F32(Panels<f32>),
    /// Stored as `f16`.
    F16(Panels<f16>),
    /// Stored as `bf16`.
    Bf16(Panels<bf16>),
    /// Quantised.
    Quant(QuantPanels),
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
    /// Whether weights are multiplied with activations as they are, not as bytes or `bf16`.
    pub exact: bool,
    /// Once it is set, what is still to be computed is left out: the call will end with an error.
    pub stop: Option<&'a StopFlag>,
}

impl Cpu<'_> {
    /// Whether nobody wants the results any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_some_and(StopFlag::is_set)
    }

    /// [`Workers::run`]; what a stopped call has not begun is left out.
    pub(crate) fn run(&self, n_items: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        match self.stop {
            None => self.workers.run(n_items, body),
            Some(stop) => self.workers.run(n_items, &|thread, item| {
                if !stop.is_set() {
                    body(thread, item);
                }
            }),
        }
    }
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

/// Panels that are packed together, from rows that are fetched together.
const PANELS_PER_ITEM: usize = 4;

/// Packs all matrices of a weight: `f` gets rows `16·i ..` of the weight it is given, at most
/// sixteen, and their panel, `panel_len` elements long.
fn pack_panels<T: Plain>(
    source: &RowSource<'_>,
    workers: &Workers,
    panel_len: usize,
    f: impl Fn(&Weight<'_>, Range<usize>, &mut [T]) + Sync,
) -> Result<Aligned<T>> {
    let shape = MatrixShape::of(source.decl());
    let n_panels = shape.n_panels();
    let mut data = Aligned::huge(shape.count * n_panels * panel_len)?;
    let shared = Shared::new(&mut data);
    let items_per_matrix = n_panels.div_ceil(PANELS_PER_ITEM);
    workers.try_run(shape.count * items_per_matrix, &|_, item| {
        let (matrix, item) = (item / items_per_matrix, item % items_per_matrix);
        let panels = item * PANELS_PER_ITEM..((item + 1) * PANELS_PER_ITEM).min(n_panels);
        let rows = panels.start * LANES..(panels.end * LANES).min(shape.rows);
        let first = matrix * shape.rows;
        let weight = source.rows(first + rows.start..first + rows.end)?;
        for (i, panel) in panels.enumerate() {
            let start = (matrix * n_panels + panel) * panel_len;
            // SAFETY: each panel belongs to one item.
            let out = unsafe { shared.slice(start..start + panel_len) };
            f(&weight, i * LANES..((i + 1) * LANES).min(rows.len()), out);
        }
        Ok(())
    })?;
    Ok(data)
}

impl PackedWeight {
    /// Bytes that `pack` takes.
    pub(crate) fn size_bytes(decl: &WeightDecl) -> u64 {
        if let Some(form) = Form::of(decl) {
            return QuantPanels::size_bytes(&form, MatrixShape::of(decl)) as u64;
        }
        let element = match decl.encoding {
            Encoding::Dense(DType::F16 | DType::Bf16) => 2,
            _ => 4,
        };
        MatrixShape::of(decl).n_packed() as u64 * element
    }

    /// Whether a weight is packed as it is quantised.
    pub(crate) fn is_quantised(decl: &WeightDecl) -> bool {
        Form::of(decl).is_some()
    }

    /// A quantised weight that was packed before; `None` if these are not its bytes.
    pub(crate) fn mapped(decl: &WeightDecl, bytes: MappedBytes) -> Option<Self> {
        Some(Self::Quant(QuantPanels::mapped(Form::of(decl)?, MatrixShape::of(decl), bytes)?))
    }

    /// The bytes of a quantised weight's panels; none of others.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Quant(p) => p.bytes(),
            _ => &[],
        }
    }

    /// Bytes that activations of so many rows take as bytes.
    pub(crate) fn activation_bytes(decl: &WeightDecl, n_rows: usize) -> u64 {
        Form::of(decl).map_or(0, |form| Activations::size_bytes(n_rows, form.cols))
    }

    /// Bytes that activations of so many rows take if they are rounded to `bf16`.
    pub(crate) fn rounded_bytes(decl: &WeightDecl, n_rows: usize) -> u64 {
        match decl.encoding {
            Encoding::Dense(DType::Bf16) => 2 * (n_rows * decl.cols().next_multiple_of(2)) as u64,
            _ => 0,
        }
    }

    /// Packs a weight.
    pub(crate) fn pack(source: &RowSource<'_>, workers: &Workers) -> Result<Self> {
        if let Some(form) = Form::of(source.decl()) {
            return Ok(Self::Quant(QuantPanels::pack(source, form, workers)?));
        }
        Ok(match source.decl().encoding {
            Encoding::Dense(DType::F16) => Self::F16(Panels::pack(source, workers)?),
            Encoding::Dense(DType::Bf16) => Self::Bf16(Panels::pack(source, workers)?),
            _ => Self::F32(Panels::pack(source, workers)?),
        })
    }

    /// Rows and columns.
    pub(crate) fn shape(&self) -> MatrixShape {
        match self {
            Self::F32(p) => p.shape(),
            Self::F16(p) => p.shape(),
            Self::Bf16(p) => p.shape(),
            Self::Quant(p) => p.shape(),
        }
    }

    /// One row of the first matrix, as it was before packing.
    pub(crate) fn row_f32(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::F32(p) => p.row_f32(row, out),
            Self::F16(p) => p.row_f32(row, out),
            Self::Bf16(p) => p.row_f32(row, out),
            Self::Quant(p) => p.row_f32(row, out),
        }
    }

    /// `x [T, cols] → y [T, rows]`: `x · Wᵀ (+ b)` with the matrix at `index`.
    pub(crate) fn matmul(
        &self,
        cpu: Cpu<'_>,
        index: usize,
        bias: Option<&[f32]>,
        x: &[f32],
        room: &mut Activations,
        y: &mut [f32],
    ) -> Result<()> {
        match self {
            Self::F32(p) => p.matmul(cpu, index, bias, x, y),
            Self::F16(p) => p.matmul(cpu, index, bias, x, y),
            #[cfg(target_arch = "x86_64")]
            Self::Bf16(p) if let (false, Some(dot)) = (cpu.exact, cpu.isa.bf16_dot()) => {
                let rounded = pairs::round(dot, cpu, x, p.shape().cols, &mut room.halves)?;
                pairs::matmul(dot, cpu, (p.matrix(index), p.shape()), bias, &rounded, y);
            }
            Self::Bf16(p) => p.matmul(cpu, index, bias, x, y),
            Self::Quant(p) if cpu.exact => p.matmul_exact(cpu, index, bias, x, y),
            Self::Quant(p) => {
                room.quantise(cpu, x, p.shape().cols)?;
                p.matmul(cpu, index, bias, room, y)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use lapidary_backend::StopFlag;

    use super::Cpu;
    use crate::simd::Isa;
    use crate::workers::Workers;

    #[test]
    fn a_loop_ends_with_the_items_that_have_begun() {
        let (workers, stop, done) = (Workers::new(1), StopFlag::new(), AtomicUsize::new(0));
        let isa = Isa::all()[0];
        let cpu = Cpu { isa, workers: &workers, exact: true, stop: Some(&stop) };
        cpu.run(100, &|_, item| {
            done.fetch_add(1, Ordering::Relaxed);
            if item == 3 {
                stop.set();
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 4);
        assert!(cpu.is_stopped());
    }
}
