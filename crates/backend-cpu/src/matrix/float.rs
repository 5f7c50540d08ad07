//! Panels of floats: packing, and the product with activations.
#![allow(unsafe_code)]

use half::{bf16, f16};
use lapidary_backend::Result;
use lapidary_backend_kit::RowSource;
use lapidary_program::Weight;

use super::product::Element;
use super::split::Split;
use super::{Cpu, MatrixShape, Product, ProductKernel, Strided, pack_panels};
use crate::aligned::Aligned;
use crate::shared::Shared;
use crate::simd::LANES;
use crate::workers::Workers;

/// Matrices of `[panel][k][16]`; the lanes after the last row are 0.
pub(crate) struct Panels<L: Element> {
    data: Aligned<L>,
    shape: MatrixShape,
}

/// How a weight's stored row becomes numbers of a panel.
pub(crate) trait Stored: Element {
    /// Decodes one row; exact for every weight that is packed with this element.
    fn decode(weight: &Weight<'_>, row: usize, out: &mut [Self]);
    /// Its value.
    fn value(self) -> f32;
}

impl<L: Stored> Panels<L> {
    pub(crate) fn pack(source: &RowSource<'_>, workers: &Workers) -> Result<Self> {
        let shape = MatrixShape::of(source.decl());
        let data = pack_panels(source, workers, shape.cols * LANES, |weight, rows, out| {
            let mut decoded = vec![L::default(); shape.cols];
            for (lane, row) in rows.enumerate() {
                L::decode(weight, row, &mut decoded);
                for (column, x) in out.chunks_exact_mut(LANES).zip(&decoded) {
                    column[lane] = *x;
                }
            }
        })?;
        Ok(Panels { data, shape })
    }

    pub(crate) fn shape(&self) -> MatrixShape {
        self.shape
    }

    pub(crate) fn row_f32(&self, row: usize, out: &mut [f32]) {
        let start = row / LANES * LANES * self.shape.cols;
        let panel = &self.data[start..start + LANES * self.shape.cols];
        for (o, column) in out.iter_mut().zip(panel.chunks_exact(LANES)) {
            *o = column[row % LANES].value();
        }
    }

    /// The panels of one matrix.
    pub(super) fn matrix(&self, index: usize) -> &[L] {
        let len = self.shape.n_panels() * self.shape.cols * LANES;
        &self.data[index * len..(index + 1) * len]
    }

    pub(crate) fn matmul(
        &self,
        cpu: Cpu<'_>,
        index: usize,
        bias: Option<&[f32]>,
        x: &[f32],
        y: &mut [f32],
    ) {
        let MatrixShape { rows: n_out, cols: n_in, .. } = self.shape;
        let (n_panels, panel_len) = (self.shape.n_panels(), n_in * LANES);
        let matrix = self.matrix(index);
        let n_tokens = x.len() / n_in;
        assert_eq!((x.len(), y.len()), (n_tokens * n_in, n_tokens * n_out), "activations");
        let split = Split::new(n_tokens, n_panels, n_in, cpu.workers.n_threads());
        let shared = Shared::new(y);
        cpu.run(split.n_items(), &|_, item| {
            let (tokens, panels) = split.item(item);
            let cols = panels.start * LANES..(panels.end * LANES).min(n_out);
            let (n_rows, n_cols) = (tokens.len(), cols.len());
            let x = &x[tokens.start * n_in..tokens.end * n_in];
            let w = &matrix[panels.start * panel_len..panels.end * panel_len];
            // SAFETY: no other item has these tokens and columns.
            let product = unsafe {
                let first = shared.at(tokens.start * n_out + cols.start);
                Product::with_raw_results(
                    Strided { data: x, stride: n_in },
                    Strided { data: w, stride: panel_len },
                    (first, n_out),
                    (n_rows, n_cols, n_in),
                )
            };
            cpu.isa.run(ProductKernel(product));
            if let Some(bias) = bias {
                for token in tokens {
                    // SAFETY: as above.
                    let y = unsafe {
                        shared.slice(token * n_out + cols.start..token * n_out + cols.end)
                    };
                    for (y, b) in y.iter_mut().zip(&bias[cols.clone()]) {
                        *y += b;
                    }
                }
            }
        });
    }
}

impl Stored for f32 {
    fn decode(weight: &Weight<'_>, row: usize, out: &mut [f32]) {
        weight.row_f32(row, out);
    }

    fn value(self) -> f32 {
        self
    }
}

impl Stored for f16 {
    fn decode(weight: &Weight<'_>, row: usize, out: &mut [f16]) {
        for (o, bytes) in out.iter_mut().zip(half_row(weight, row)) {
            *o = f16::from_le_bytes(*bytes);
        }
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

impl Stored for bf16 {
    fn decode(weight: &Weight<'_>, row: usize, out: &mut [bf16]) {
        for (o, bytes) in out.iter_mut().zip(half_row(weight, row)) {
            *o = bf16::from_le_bytes(*bytes);
        }
    }

    fn value(self) -> f32 {
        self.to_f32()
    }
}

/// One row of a dense weight of two-byte numbers.
fn half_row<'a>(weight: &'a Weight<'_>, row: usize) -> &'a [[u8; 2]] {
    let n = weight.decl.cols();
    &weight.data.as_chunks::<2>().0[row * n..(row + 1) * n]
}
