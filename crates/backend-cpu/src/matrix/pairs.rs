//! Products of `bf16` panels with activations rounded to `bf16`, two columns at a time.
//!
//! Where the machine multiplies pairs of `bf16` and adds both products to an `f32`, that is twice
//! the work of a fused multiply-add. Weights lose nothing by it; activations are rounded to the
//! eight bits that the weights have, as the frameworks do in which such models are trained. So this
//! is what `Precision::Fast` means for `bf16`; `Exact` keeps activations as they are.
//!
//! Sums run along pairs of columns in blocks of `DEPTH_BLOCK` columns, whatever the tile, so a
//! result does not depend on how many rows are computed together.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm256_loadu_si256, _mm512_add_ps, _mm512_cvtne2ps_pbh,
    _mm512_dpbf16_ps, _mm512_inserti64x4, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_permutexvar_epi16, _mm512_set1_epi32,
    _mm512_setzero_ps, _mm512_setzero_si512, _mm512_storeu_si512,
};
use std::mem::{MaybeUninit, transmute};

use half::bf16;
use lapidary_backend::Result;

use super::product::DEPTH_BLOCK;
use super::split::Split;
use super::{Cpu, MatrixShape};
use crate::aligned::Aligned;
use crate::shared::Shared;
use crate::simd::{Bf16Dot, Bf16Work, LANES};

/// Columns of one pair.
const PAIR: usize = 2;
/// From this many rows on, a block of panels is put into pairs once for all rows.
const ARRANGE_FROM: usize = 16;
/// Panels that are read together.
const WIDTH: usize = 2;
/// Numbers that are worth a thread of their own.
const ITEM_LEN: usize = 1 << 15;

/// Rows of activations as `bf16`, `n_in` rounded up to an even number apart.
pub(super) struct Rounded<'a> {
    pub data: &'a [bf16],
    pub stride: usize,
}

/// Numbers from one row of `n_in` columns to the next.
pub(super) fn stride(n_in: usize) -> usize {
    n_in.next_multiple_of(PAIR)
}

/// Rounds `x [T, n_in]` into `room`.
pub(super) fn round<'a>(
    dot: Bf16Dot,
    cpu: Cpu<'_>,
    x: &[f32],
    n_in: usize,
    room: &'a mut Aligned<bf16>,
) -> Result<Rounded<'a>> {
    let (n_tokens, stride) = (x.len() / n_in, stride(n_in));
    room.grow(n_tokens * stride)?;
    let shared = Shared::new(room);
    let per_item = ITEM_LEN.div_ceil(n_in);
    cpu.run(n_tokens.div_ceil(per_item), &|_, item| {
        let tokens = item * per_item..((item + 1) * per_item).min(n_tokens);
        for token in tokens {
            // SAFETY: each row belongs to one item.
            let out = unsafe { shared.slice(token * stride..(token + 1) * stride) };
            dot.run(RoundRow { x: &x[token * n_in..(token + 1) * n_in], out });
        }
    });
    Ok(Rounded { data: &room[..n_tokens * stride], stride })
}

/// To the nearest `bf16`, ties to even; zeros after the last number.
struct RoundRow<'a> {
    x: &'a [f32],
    out: &'a mut [bf16],
}

impl Bf16Work for RoundRow<'_> {
    #[inline(always)]
    unsafe fn call(self) {
        // SAFETY: by the caller's promise.
        unsafe { round_row(self.x, self.out) }
    }
}

/// # Safety
/// The machine has the instructions.
#[inline(always)]
unsafe fn round_row(x: &[f32], out: &mut [bf16]) {
    const STEP: usize = 2 * LANES;
    let (chunks, rest) = x.as_chunks::<STEP>();
    for (chunk, out) in chunks.iter().zip(out.chunks_exact_mut(STEP)) {
        // SAFETY: 32 numbers are read and written.
        unsafe {
            let low = _mm512_loadu_ps(chunk.as_ptr());
            let high = _mm512_loadu_ps(chunk.as_ptr().add(LANES));
            let both = _mm512_cvtne2ps_pbh(high, low);
            _mm512_storeu_si512(
                out.as_mut_ptr().cast::<__m512i>(),
                transmute::<__m512bh, __m512i>(both),
            );
        }
    }
    let out = &mut out[chunks.len() * STEP..];
    out.fill(bf16::ZERO);
    for (o, x) in out.iter_mut().zip(rest) {
        *o = bf16::from_f32(*x);
    }
}

/// `x · Wᵀ (+ b)` with one matrix of panels.
pub(super) fn matmul(
    dot: Bf16Dot,
    cpu: Cpu<'_>,
    (matrix, shape): (&[bf16], MatrixShape),
    bias: Option<&[f32]>,
    x: &Rounded<'_>,
    y: &mut [f32],
) {
    let MatrixShape { rows: n_out, cols: n_in, .. } = shape;
    let (n_panels, panel_len) = (shape.n_panels(), n_in * LANES);
    let n_tokens = y.len() / n_out;
    assert_eq!((x.stride, x.data.len()), (stride(n_in), n_tokens * x.stride), "activations");
    assert_eq!((matrix.len(), y.len()), (n_panels * panel_len, n_tokens * n_out), "panels");
    let split = Split::new(n_tokens, n_panels, n_in, cpu.workers.n_threads());
    let shared = Shared::new(y);
    cpu.run(split.n_items(), &|_, item| {
        let (tokens, panels) = split.item(item);
        let mut first = panels.start;
        while first < panels.end {
            let cols = first * LANES..((first + WIDTH) * LANES).min(panels.end * LANES).min(n_out);
            // SAFETY: no other item has these tokens and columns; the asserts above hold them in
            // the slices.
            unsafe {
                let block = Block {
                    x: x.data.as_ptr().add(tokens.start * x.stride),
                    x_stride: x.stride,
                    w: matrix.as_ptr().add(first * panel_len),
                    panel_len,
                    y: shared.at(tokens.start * n_out + cols.start),
                    y_stride: n_out,
                    rows: tokens.len(),
                    cols: cols.len(),
                    depth: n_in,
                };
                dot.run(block);
            }
            first += WIDTH;
        }
        let Some(bias) = bias else { return };
        let cols = panels.start * LANES..(panels.end * LANES).min(n_out);
        for token in tokens {
            // SAFETY: as above.
            let y = unsafe { shared.slice(token * n_out + cols.start..token * n_out + cols.end) };
            y.iter_mut().zip(&bias[cols.clone()]).for_each(|(y, b)| *y += b);
        }
    });
}

/// Some rows times one or two panels.
struct Block {
    x: *const bf16,
    x_stride: usize,
    w: *const bf16,
    panel_len: usize,
    y: *mut f32,
    y_stride: usize,
    rows: usize,
    cols: usize,
    depth: usize,
}

/// Pairs of two panels, block by block.
#[repr(align(64))]
struct Arranged(#[allow(dead_code)] [[__m512i; DEPTH_BLOCK / PAIR]; WIDTH]);

impl Bf16Work for Block {
    #[inline(always)]
    unsafe fn call(self) {
        // SAFETY: whoever makes a block promises that the pointers hold what the numbers say.
        unsafe { if self.cols > LANES { self.columns::<2>() } else { self.columns::<1>() } }
    }
}

/// Where the pairs of a block of panels come from.
trait Pairs {
    /// # Safety
    /// The panel and the pair are there, and so are the instructions.
    unsafe fn get(&self, panel: usize, pair: usize) -> __m512i;
}

/// Panels as they are packed.
struct Packed<const W: usize> {
    panels: [*const bf16; W],
    depth: usize,
}

/// Panels that were put into pairs.
struct InPairs<const W: usize>([*mut __m512i; W]);

impl<const W: usize> Pairs for Packed<W> {
    #[inline(always)]
    unsafe fn get(&self, panel: usize, pair: usize) -> __m512i {
        // SAFETY: by the caller's promise.
        unsafe { pair_of(self.panels[panel], pair, self.depth) }
    }
}

impl<const W: usize> Pairs for InPairs<W> {
    #[inline(always)]
    unsafe fn get(&self, panel: usize, pair: usize) -> __m512i {
        // SAFETY: by the caller's promise.
        unsafe { *self.0[panel].add(pair) }
    }
}

impl Block {
    /// # Safety
    /// As `call`, and there are `W` panels.
    #[inline(always)]
    unsafe fn columns<const W: usize>(&self) {
        let mut room = MaybeUninit::<Arranged>::uninit();
        for start in (0..self.depth).step_by(DEPTH_BLOCK) {
            let depth = (self.depth - start).min(DEPTH_BLOCK);
            // SAFETY: panels hold `start + depth` columns; `room` holds the pairs of a block and is
            // read only where it was written.
            unsafe {
                let packed = Packed::<W> {
                    panels: std::array::from_fn(|j| self.w.add(j * self.panel_len + start * LANES)),
                    depth,
                };
                if self.rows < ARRANGE_FROM {
                    self.rows::<W>(start, depth, &packed);
                    continue;
                }
                let first = room.as_mut_ptr().cast::<__m512i>();
                let arranged =
                    InPairs::<W>(std::array::from_fn(|j| first.add(j * (DEPTH_BLOCK / PAIR))));
                for pair in 0..depth.div_ceil(PAIR) {
                    for (j, to) in arranged.0.iter().enumerate() {
                        *to.add(pair) = packed.get(j, pair);
                    }
                }
                self.rows::<W>(start, depth, &arranged);
            }
        }
    }

    /// # Safety
    /// As `call`; `w` gives the pairs of this block.
    #[inline(always)]
    unsafe fn rows<const W: usize>(&self, start: usize, depth: usize, w: &impl Pairs) {
        let mut row = 0;
        macro_rules! tiles_of {
            ($height:literal) => {
                while self.rows - row >= $height {
                    // SAFETY: these rows are there.
                    unsafe { self.tile::<$height, W>(row, start, depth, w) };
                    row += $height;
                }
            };
        }
        tiles_of!(12);
        tiles_of!(8);
        tiles_of!(4);
        tiles_of!(2);
        tiles_of!(1);
    }

    /// # Safety
    /// As `rows`, and there are `H` rows from `row` on.
    #[inline(always)]
    unsafe fn tile<const H: usize, const W: usize>(
        &self,
        row: usize,
        start: usize,
        depth: usize,
        w: &impl Pairs,
    ) {
        // SAFETY: by the caller's promise; columns after `cols` are masked.
        unsafe {
            let x = self.x.add(row * self.x_stride + start).cast::<i32>();
            let x_stride = self.x_stride / PAIR;
            let mut sums = [[_mm512_setzero_ps(); W]; H];
            for pair in 0..depth.div_ceil(PAIR) {
                let mut pairs = [_mm512_setzero_si512(); W];
                for (j, pairs) in pairs.iter_mut().enumerate() {
                    *pairs = w.get(j, pair);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(x.add(r * x_stride + pair).read_unaligned());
                    for (sum, pairs) in sums.iter_mut().zip(pairs) {
                        *sum = dot(*sum, pairs, x);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (j, sum) in sums.iter().enumerate() {
                    let y = self.y.add((row + r) * self.y_stride + j * LANES);
                    let lanes = lanes(self.cols - j * LANES);
                    let before = _mm512_maskz_loadu_ps(if start == 0 { 0 } else { lanes }, y);
                    _mm512_mask_storeu_ps(y, lanes, _mm512_add_ps(before, *sum));
                }
            }
        }
    }
}

/// The first `n` lanes.
fn lanes(n: usize) -> u16 {
    if n >= LANES { u16::MAX } else { (1 << n) - 1 }
}

/// # Safety
/// The machine has the instructions.
#[inline(always)]
unsafe fn dot(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
    // SAFETY: any bits are pairs of `bf16`.
    unsafe {
        _mm512_dpbf16_ps(sum, transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b))
    }
}

/// Two columns of a panel side by side; zeros where the second is after the last.
///
/// # Safety
/// `depth` columns of sixteen numbers can be read at `panel`, and `2·pair < depth`.
#[inline(always)]
unsafe fn pair_of(panel: *const bf16, pair: usize, depth: usize) -> __m512i {
    // SAFETY: by the caller's promise.
    unsafe {
        let p = panel.add(pair * PAIR * LANES);
        let columns = if pair * PAIR + 1 < depth {
            _mm512_loadu_si512(p.cast::<__m512i>())
        } else {
            let one = _mm256_loadu_si256(p.cast());
            _mm512_inserti64x4::<0>(_mm512_setzero_si512(), one)
        };
        let order: __m512i = transmute::<[i16; 32], __m512i>(SIDE_BY_SIDE);
        _mm512_permutexvar_epi16(order, columns)
    }
}

/// Where each of sixteen pairs comes from in two columns of sixteen.
const SIDE_BY_SIDE: [i16; 2 * LANES] = {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        order[2 * i] = i as i16;
        order[2 * i + 1] = (LANES + i) as i16;
        i += 1;
    }
    order
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;
    use crate::workers::Workers;

    /// Arbitrary numbers around zero, a few of them large.
    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let number = |i: u32| {
            let bits = (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(13);
            let x = bits.wrapping_mul(0x9e37_79b9) as f32 / u32::MAX as f32 - 0.5;
            if i.is_multiple_of(61) { x * 40.0 } else { x }
        };
        (0..n as u32).map(number).collect()
    }

    /// The product of rows `x` with panels that are made of `w [n_out, n_in]`.
    fn product(dot: Bf16Dot, w: &[bf16], x: &[f32], bias: &[f32], n_in: usize) -> Vec<f32> {
        let shape = MatrixShape { count: 1, rows: w.len() / n_in, cols: n_in };
        let mut panels = vec![bf16::ZERO; shape.n_packed()];
        for (i, w) in w.iter().enumerate() {
            let (row, k) = (i / n_in, i % n_in);
            panels[(row / LANES * n_in + k) * LANES + row % LANES] = *w;
        }
        let workers = Workers::new(2);
        let isa = Isa::named("avx512bf16").expect("it was detected");
        let cpu = Cpu { isa, workers: &workers, exact: false, stop: None };
        let mut room = Aligned::default();
        let rounded = round(dot, cpu, x, n_in, &mut room).expect("there is memory");
        let mut y = vec![f32::NAN; x.len() / n_in * shape.rows];
        matmul(dot, cpu, (&panels, shape), Some(bias), &rounded, &mut y);
        y
    }

    #[test]
    fn rows_are_right_and_do_not_depend_on_their_neighbours() {
        let Some(dot) = Bf16Dot::detect() else {
            assert!(Isa::named("avx512bf16").is_err());
            eprintln!("SKIPPED avx512bf16: this machine does not have it");
            return;
        };
        for (n_out, n_in) in [(1, 1), (16, 2), (17, 33), (40, 257), (100, 600), (33, 1025)] {
            let w: Vec<bf16> = numbers(n_out * n_in, 7).into_iter().map(bf16::from_f32).collect();
            let (x, bias) = (numbers(31 * n_in, 3), numbers(n_out, 5));
            let all = product(dot, &w, &x, &bias, n_in);
            for (row, x) in x.chunks_exact(n_in).enumerate() {
                let whole = &all[row * n_out..(row + 1) * n_out];
                assert_eq!(whole, product(dot, &w, x, &bias, n_in), "{n_out} × {n_in}, {row}");
                for (n, y) in whole.iter().enumerate() {
                    let terms = x.iter().zip(&w[n * n_in..(n + 1) * n_in]);
                    let terms = terms.map(|(x, w)| bf16::from_f32(*x).to_f64() * w.to_f64());
                    let (mut sum, mut size) = (f64::from(bias[n]), 1.0);
                    for term in terms {
                        sum += term;
                        size += term.abs();
                    }
                    assert!((f64::from(*y) - sum).abs() < 1e-6 * size, "{y} is not {sum}");
                }
            }
        }
    }
}
