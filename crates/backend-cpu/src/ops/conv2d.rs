#![allow(unsafe_code)]

use crate::matrix::{Cpu, Product, ProductKernel, Strided};
use crate::shared::Shared;
use crate::simd::LANES;

/// A 3×3 kernel and the columns it goes over.
#[derive(Clone, Copy)]
pub(crate) struct Conv2d<'a> {
    /// Panels of a matrix `[O, 9·I]`, as `derived` makes them.
    pub panels: &'a [f32],
    /// `I`.
    pub n_in: usize,
    /// `O`.
    pub n_out: usize,
    /// Columns of the input.
    pub width: usize,
}

/// Numbers that one thread needs: what the kernel sees at each place of one output row.
pub(crate) fn row_scratch(width: usize, n_in: usize) -> usize {
    width.div_ceil(2) * 9 * n_in
}

/// `x [F, width·I] → [F/2, width/2·O]`, lengths rounded up: a 3×3 convolution of stride 2 over rows
/// and columns, with a border of one zero.
///
/// Each output row is a product of what the kernel sees, gathered into `scratch`, and its weights.
pub(crate) fn conv2d(
    cpu: Cpu<'_>,
    conv: Conv2d<'_>,
    x: &[f32],
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let Conv2d { panels, n_in, n_out, width } = conv;
    let (depth, n_columns) = (9 * n_in, width.div_ceil(2));
    let (row_len, scratch_len) = (n_columns * n_out, row_scratch(width, n_in));
    let scratch = Shared::new(scratch);
    let n_rows = out.len() / row_len;
    let out = Shared::new(out);
    cpu.run(n_rows, &|thread, row| {
        // SAFETY: each thread has a scratch of its own.
        let seen = unsafe { scratch.slice(thread * scratch_len..(thread + 1) * scratch_len) };
        // SAFETY: each row belongs to one item.
        let out = unsafe { out.slice(row * row_len..(row + 1) * row_len) };
        for (column, seen) in seen.chunks_exact_mut(depth).enumerate() {
            gather(x, (width, n_in), (2 * row, 2 * column), seen);
        }
        cpu.isa.run(ProductKernel(Product::new(
            Strided { data: &*seen, stride: depth },
            Strided { data: panels, stride: depth * LANES },
            Strided { data: out, stride: n_out },
            (n_columns, n_out, depth),
        )));
    });
}

/// What a kernel sees around a row and a column of the input: `[3, 3, I]`, zeros outside.
fn gather(
    x: &[f32],
    (width, n_in): (usize, usize),
    (row, column): (usize, usize),
    seen: &mut [f32],
) {
    let row_len = width * n_in;
    // The neighbours of a row lie side by side; the first and the last may be missing.
    let left = if column == 0 { n_in } else { 0 };
    let right = if column + 1 < width { 3 * n_in } else { 2 * n_in };
    for (dy, seen) in seen.chunks_exact_mut(3 * n_in).enumerate() {
        let above = row + dy;
        if above == 0 || above * row_len > x.len() {
            seen.fill(0.0);
            continue;
        }
        seen[..left].fill(0.0);
        seen[right..].fill(0.0);
        let start = (above - 1) * row_len + column * n_in + left - n_in;
        seen[left..right].copy_from_slice(&x[start..start + right - left]);
    }
}
