//! Quantised weights, packed: see `form` for the layout and `integer` for the product.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::{Deref, Range};

use lapidary_backend::Result;
use lapidary_backend_kit::RowSource;
use lapidary_program::{Part, Weight};

use super::activations::{Activations, BLOCK, Units};
use super::form::{CHUNK, CHUNKS, Form, Width, put_part};
use super::integer::IntegerProduct;
use super::product::{self, DEPTH_BLOCK, Product};
use super::split::Split;
use super::unpack::{factors, floats, spread};
use super::{Cpu, MatrixShape, Strided, pack_panels};
use crate::aligned::Aligned;
use crate::pack_cache::MappedBytes;
use crate::shared::Shared;
use crate::simd::{Kernel, LANES, Simd};
use crate::workers::Workers;

/// Matrices of panels.
pub(crate) struct QuantPanels {
    data: Bytes,
    shape: MatrixShape,
    form: Form,
}

/// Where panels are.
enum Bytes {
    /// Packed by this process.
    Packed(Aligned<u8>),
    /// Packed by an earlier one.
    Mapped(MappedBytes),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Packed(bytes) => bytes,
            Bytes::Mapped(bytes) => bytes,
        }
    }
}

impl QuantPanels {
    /// Bytes of all panels.
    pub(crate) fn size_bytes(form: &Form, shape: MatrixShape) -> usize {
        shape.count * shape.n_panels() * form.panel_bytes
    }

    pub(crate) fn pack(source: &RowSource<'_>, form: Form, workers: &Workers) -> Result<Self> {
        let shape = MatrixShape::of(source.decl());
        let data = pack_panels(source, workers, form.panel_bytes, |weight, rows, out| {
            pack_panel(weight, &form, rows, out);
        })?;
        Ok(QuantPanels { data: Bytes::Packed(data), shape, form })
    }

    /// Panels that were packed before; `None` if these bytes are not as many.
    pub(crate) fn mapped(form: Form, shape: MatrixShape, bytes: MappedBytes) -> Option<Self> {
        let fits = bytes.len() == Self::size_bytes(&form, shape);
        fits.then_some(QuantPanels { data: Bytes::Mapped(bytes), shape, form })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn shape(&self) -> MatrixShape {
        self.shape
    }

    /// One row of the first matrix, as it was before packing.
    pub(crate) fn row_f32(&self, row: usize, out: &mut [f32]) {
        let form = &self.form;
        let start = row / LANES * form.panel_bytes;
        let (panel, lane) = (&self.data[start..start + form.panel_bytes], row % LANES);
        let offset = i32::from(form.layout.offset);
        let mut codes = [0u8; BLOCK];
        for (b, out) in out.chunks_mut(BLOCK).enumerate() {
            form.take_codes(b, panel, lane, &mut codes);
            for (u, out) in out.chunks_mut(form.unit()).enumerate() {
                let group = form.group_of(b * BLOCK + u * form.unit());
                let scale = form.factor(panel, lane, group, false);
                let codes = &codes[u * form.unit()..];
                out.iter_mut()
                    .zip(codes)
                    .for_each(|(o, c)| *o = (i32::from(*c) - offset) as f32 * scale);
                if form.layout.affine {
                    let bias = form.factor(panel, lane, group, true);
                    out.iter_mut().for_each(|o| *o += bias);
                }
            }
        }
    }

    /// `x [T, cols] → y [T, rows]` with activations as bytes.
    pub(crate) fn matmul(
        &self,
        cpu: Cpu<'_>,
        index: usize,
        bias: Option<&[f32]>,
        x: &mut Activations,
        y: &mut [f32],
    ) -> Result<()> {
        let (form, wide) = (&self.form, self.form.width == Width::Eight);
        x.prepare(Units {
            halves: form.halves,
            offset: i32::from(form.layout.offset) - if wide { cpu.isa.wide_offset() } else { 0 },
            affine: form.layout.affine,
        })?;
        let x = &*x;
        self.items(cpu, index, bias, x.n_tokens(), y, |tokens, panels, y, y_stride, cols| {
            // SAFETY: as `items` promises.
            let product =
                unsafe { IntegerProduct::new(form, panels, x.rows(tokens), (y, y_stride), cols) };
            product.run(cpu.isa);
        });
        Ok(())
    }

    /// `x [T, cols] → y [T, rows]` with activations as they are: the same numbers, to the bit, as
    /// if the weight had been packed as floats.
    pub(crate) fn matmul_exact(
        &self,
        cpu: Cpu<'_>,
        index: usize,
        bias: Option<&[f32]>,
        x: &[f32],
        y: &mut [f32],
    ) {
        let n_in = self.shape.cols;
        let n_tokens = x.len() / n_in;
        self.items(cpu, index, bias, n_tokens, y, |tokens, panels, y, y_stride, cols| {
            let x = &x[tokens.start * n_in..tokens.end * n_in];
            let (rows, x) = (tokens.len(), Strided { data: x, stride: n_in });
            // SAFETY: as `items` promises.
            let product =
                unsafe { Product::<f32>::of_unpacked(x, (y, y_stride), (rows, cols, n_in)) };
            cpu.isa.run(FloatKernel { form: &self.form, panels, product });
        });
    }

    /// Cuts a product into items and calls `f` with the tokens, the panels, and where their
    /// `cols` results of each token go, so many numbers apart; nobody else writes there.
    fn items(
        &self,
        cpu: Cpu<'_>,
        index: usize,
        bias: Option<&[f32]>,
        n_tokens: usize,
        y: &mut [f32],
        f: impl Fn(Range<usize>, &[u8], *mut f32, usize, usize) + Sync,
    ) {
        let MatrixShape { rows: n_out, cols: n_in, .. } = self.shape;
        assert_eq!(y.len(), n_tokens * n_out, "results");
        let (n_panels, panel_bytes) = (self.shape.n_panels(), self.form.panel_bytes);
        let matrix =
            &self.data[index * n_panels * panel_bytes..(index + 1) * n_panels * panel_bytes];
        let split = Split::new(n_tokens, n_panels, n_in, cpu.workers.n_threads());
        let shared = Shared::new(y);
        cpu.run(split.n_items(), &|_, item| {
            let (tokens, panels) = split.item(item);
            let cols = panels.start * LANES..(panels.end * LANES).min(n_out);
            let w = &matrix[panels.start * panel_bytes..panels.end * panel_bytes];
            // SAFETY: no other item has these tokens and columns.
            let first = unsafe { shared.at(tokens.start * n_out + cols.start) };
            f(tokens.clone(), w, first, n_out, cols.len());
            let Some(bias) = bias else { return };
            for token in tokens {
                // SAFETY: as above.
                let y =
                    unsafe { shared.slice(token * n_out + cols.start..token * n_out + cols.end) };
                y.iter_mut().zip(&bias[cols.clone()]).for_each(|(y, b)| *y += b);
            }
        });
    }
}

/// Packs up to sixteen rows, the others of the panel being zeros with scales of zero.
fn pack_panel(weight: &Weight<'_>, form: &Form, rows: Range<usize>, out: &mut [u8]) {
    let row_bytes = form.layout.row_bytes(form.cols);
    let mut codes = vec![0; form.cols];
    for (lane, row) in rows.clone().enumerate() {
        form.layout.unpack_row(&weight.data[row * row_bytes..(row + 1) * row_bytes], &mut codes);
        form.put_codes(&codes, lane, out);
    }
    let parts = [
        (Part::Scale, form.scales),
        (Part::Bias, form.biases),
        (Part::SuperScale, form.super_scales),
        (Part::SuperBias, form.super_biases),
    ];
    for (part, start) in parts {
        let Some((dtype, shape)) = weight.decl.part_layout(part) else { continue };
        let size = dtype.size_bytes();
        let len = shape.last().map_or(0, |n| *n as usize) * size;
        let bytes = weight.part(part);
        let rows: Vec<&[u8]> = rows.clone().map(|row| &bytes[row * len..(row + 1) * len]).collect();
        put_part(size, &rows, &mut out[start..]);
    }
}

/// Rows of floats times panels that become floats a stretch at a time.
struct FloatKernel<'a> {
    form: &'a Form,
    panels: &'a [u8],
    product: Product<'a, f32>,
}

/// Blocks of a partial sum.
const BLOCKS: usize = DEPTH_BLOCK / BLOCK;

/// One stretch of a panel.
#[repr(align(64))]
struct Stretch {
    floats: [f32; DEPTH_BLOCK * LANES],
    codes: [u8; BLOCKS * CHUNKS * CHUNK],
    scales: [f32; 2 * BLOCKS * LANES],
    biases: [f32; 2 * BLOCKS * LANES],
}

impl Kernel for FloatKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let form = self.form;
        let n_panels = self.product.n_panels();
        assert!(n_panels * form.panel_bytes <= self.panels.len(), "panels");
        let mut room = MaybeUninit::<Stretch>::uninit();
        let room = room.as_mut_ptr();
        let per_block = if form.halves { 2 } else { 1 };
        for p in 0..n_panels {
            for first in (0..form.n_blocks).step_by(BLOCKS) {
                let n = (form.n_blocks - first).min(BLOCKS);
                let units = (first * per_block, n * per_block);
                let start = first * BLOCK;
                // SAFETY: the panel is there as was checked, and a stretch has room for `BLOCKS`.
                unsafe {
                    let panel = self.panels.as_ptr().add(p * form.panel_bytes);
                    let codes = (&raw mut (*room).codes).cast::<u8>();
                    let scales = (&raw mut (*room).scales).cast::<f32>();
                    let biases = (&raw mut (*room).biases).cast::<f32>();
                    let made = (&raw mut (*room).floats).cast::<f32>();
                    let from = panel.add(form.codes + first * form.width.block_bytes());
                    spread(s, form.width, from, codes, n);
                    factors(s, form, panel, false, units, scales);
                    if form.layout.affine {
                        factors(s, form, panel, true, units, biases);
                    }
                    floats(s, form, (codes, scales, biases), n, made);
                    let depth = (form.cols - start).min(DEPTH_BLOCK);
                    product::rows(s, &self.product, p, start, depth, [made.cast_const()]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
