//! Panels of floats: packing, and the product with activations.
#![allow(unsafe_code)]

use half::{bf16, f16};
use lapidary_backend::Result;
use lapidary_program::Weight;

use super::product::Element;
use super::{Cpu, MatrixShape, Product, ProductKernel, Strided};
use crate::aligned::Aligned;
use crate::shared::Shared;
use crate::simd::LANES;
use crate::workers::Workers;

/// Multiplications that are worth a thread of their own.
const ITEM_WORK: usize = 1 << 15;

/// Matrices of `[panel][k][16]`; the lanes behind the last row are 0.
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
    pub(crate) fn pack(weight: &Weight<'_>, workers: &Workers) -> Result<Self> {
        let shape = MatrixShape::of(&weight.decl);
        let mut data = Aligned::zeroed(shape.n_packed())?;
        let panel_len = shape.cols * LANES;
        let shared = Shared::new(&mut data);
        workers.run(shape.count * shape.n_panels(), &|_, panel| {
            // SAFETY: each item has a panel of its own.
            let out = unsafe { shared.slice(panel * panel_len..(panel + 1) * panel_len) };
            let (matrix, first) = (panel / shape.n_panels(), panel % shape.n_panels() * LANES);
            let mut decoded = vec![L::default(); shape.cols];
            for lane in 0..LANES.min(shape.rows - first) {
                L::decode(weight, matrix * shape.rows + first + lane, &mut decoded);
                for (column, x) in out.chunks_exact_mut(LANES).zip(&decoded) {
                    column[lane] = *x;
                }
            }
        });
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
        let matrix = &self.data[index * n_panels * panel_len..(index + 1) * n_panels * panel_len];
        let n_tokens = x.len() / n_in;
        assert_eq!((x.len(), y.len()), (n_tokens * n_in, n_tokens * n_out), "activations");
        let split = Split::new(n_tokens, n_panels, n_in, cpu.workers.n_threads());
        let shared = Shared::new(y);
        cpu.workers.run(split.n_items(), &|_, item| {
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

/// A product cut into items: some tokens times some panels each.
struct Split {
    n_tokens: usize,
    tokens_per_item: usize,
    n_panels: usize,
    panels_per_item: usize,
}

impl Split {
    fn new(n_tokens: usize, n_panels: usize, n_in: usize, n_threads: usize) -> Self {
        // Several items per thread, so that a slow thread leaves its share to others.
        let wanted = 8 * n_threads;
        let panel_work = (n_tokens * n_in * LANES).max(1);
        let panels_per_item = n_panels
            .div_ceil(wanted)
            .max(ITEM_WORK.div_ceil(panel_work))
            .next_multiple_of(4)
            .min(n_panels.max(1));
        let panel_items = n_panels.div_ceil(panels_per_item);
        // Tall products of few panels are cut along the tokens too.
        let token_items = (2 * n_threads).div_ceil(panel_items.max(1));
        let tokens_per_item = n_tokens.div_ceil(token_items).next_multiple_of(24).max(24);
        Split { n_tokens, tokens_per_item, n_panels, panels_per_item }
    }

    fn n_items(&self) -> usize {
        self.n_tokens.div_ceil(self.tokens_per_item) * self.panel_items()
    }

    fn panel_items(&self) -> usize {
        self.n_panels.div_ceil(self.panels_per_item)
    }

    fn item(&self, item: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let t = item / self.panel_items() * self.tokens_per_item;
        let p = item % self.panel_items() * self.panels_per_item;
        (
            t..(t + self.tokens_per_item).min(self.n_tokens),
            p..(p + self.panels_per_item).min(self.n_panels),
        )
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
