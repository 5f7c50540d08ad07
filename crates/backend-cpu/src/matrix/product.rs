//! The kernel: rows times panels, in tiles whose sums stay in registers.
//!
//! `y[r, n] = Σ_k x[r, k] · w[n / 16][k][n % 16]`
//!
//! The sum is taken in blocks of `DEPTH_BLOCK` along `k`: within a block strictly from low to high
//! `k`, then block after block. Tiles of any height and width do exactly this for each of their
//! outputs, so a result does not depend on which tile it was computed in. Blocks keep the rounding
//! error of long rows down and the weights of a tile in the first-level cache.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::aligned::Plain;
use crate::simd::{Kernel, LANES, Simd};

/// Length of a partial sum.
pub(super) const DEPTH_BLOCK: usize = 256;
/// From this many rows on, a block of panels is converted to `f32` once for all rows.
const CONVERT_FROM: usize = 16;
/// The widest tile, in vectors.
const MAX_WIDTH: usize = 4;

/// A number as it stands in a panel.
pub(crate) trait Element: Plain {
    /// Whether loading is more than loading.
    const CONVERTS: bool;

    /// # Safety
    /// 16 numbers can be read at `p`.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> S::V;
}

/// One product over slices, checked when it is made.
///
/// `x` has `rows` rows of `depth` numbers, `x_stride` apart; `w` has `⌈cols / 16⌉` panels of
/// `[depth][16]`, `panel_stride` apart; `y` has `rows` rows of `cols` numbers, `y_stride` apart.
pub(crate) struct Product<'a, L> {
    x: *const f32,
    x_stride: usize,
    w: *const L,
    panel_stride: usize,
    y: *mut f32,
    y_stride: usize,
    rows: usize,
    cols: usize,
    depth: usize,
    /// Whether results are added to what is there.
    adds: bool,
    borrows: PhantomData<(&'a [L], &'a mut [f32])>,
}

/// Runs a [`Product`] with an instruction set.
pub(crate) struct ProductKernel<'a, L>(pub Product<'a, L>);

/// Rows, or panels, that lie `stride` numbers apart in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Strided<T> {
    pub data: T,
    pub stride: usize,
}

impl<'a, L: Element> Product<'a, L> {
    /// A product of whole slices.
    pub(crate) fn new(
        x: Strided<&'a [f32]>,
        w: Strided<&'a [L]>,
        y: Strided<&'a mut [f32]>,
        (rows, cols, depth): (usize, usize, usize),
    ) -> Self {
        if rows > 0 {
            assert!((rows - 1) * y.stride + cols <= y.data.len(), "results");
        }
        // SAFETY: the results lie in `y`, which is borrowed for as long as the product.
        unsafe {
            Self::with_raw_results(x, w, (y.data.as_mut_ptr(), y.stride), (rows, cols, depth))
        }
    }

    /// A product whose results lie between those of other threads.
    ///
    /// # Safety
    /// `rows` rows of `cols` numbers, `y.1` apart, can be written at `y.0`, and nothing else reads
    /// or writes them while the product lives.
    pub(crate) unsafe fn with_raw_results(
        x: Strided<&'a [f32]>,
        w: Strided<&'a [L]>,
        y: (*mut f32, usize),
        (rows, cols, depth): (usize, usize, usize),
    ) -> Self {
        if rows > 0 && cols > 0 {
            let last_panel = (cols - 1) / LANES;
            assert!((rows - 1) * x.stride + depth <= x.data.len(), "rows");
            assert!(last_panel * w.stride + depth * LANES <= w.data.len(), "panels");
        }
        Product {
            x: x.data.as_ptr(),
            x_stride: x.stride,
            w: w.data.as_ptr(),
            panel_stride: w.stride,
            y: y.0,
            y_stride: y.1,
            rows,
            cols,
            depth,
            adds: false,
            borrows: PhantomData,
        }
    }

    /// The same, added to what the results hold.
    pub(crate) fn adding(self) -> Self {
        Product { adds: true, ..self }
    }
}

impl<'a> Product<'a, f32> {
    /// A product whose panels are made bit by bit, for [`rows`] alone.
    ///
    /// # Safety
    /// As [`Product::with_raw_results`].
    pub(super) unsafe fn of_unpacked(
        x: Strided<&'a [f32]>,
        y: (*mut f32, usize),
        (rows, cols, depth): (usize, usize, usize),
    ) -> Self {
        let none = Strided { data: [].as_slice(), stride: 0 };
        // SAFETY: by the caller's promise.
        let mut product = unsafe { Self::with_raw_results(x, none, y, (rows, 0, depth)) };
        assert!(rows == 0 || (rows - 1) * x.stride + depth <= x.data.len(), "rows");
        product.cols = cols;
        product
    }

    pub(super) fn n_panels(&self) -> usize {
        self.cols.div_ceil(LANES)
    }
}

impl<L: Element> Kernel for ProductKernel<'_, L> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let product = &self.0;
        let n_panels = product.cols.div_ceil(LANES);
        let mut panel = 0;
        // SAFETY: `panel + width ≤ n_panels` in each call.
        unsafe {
            if product.rows == 1 && S::WIDE {
                while panel + 4 <= n_panels {
                    columns::<S, L, 4>(s, product, panel);
                    panel += 4;
                }
            }
            if product.rows == 1 || S::WIDE {
                while panel + 2 <= n_panels {
                    columns::<S, L, 2>(s, product, panel);
                    panel += 2;
                }
            }
            while panel < n_panels {
                columns::<S, L, 1>(s, product, panel);
                panel += 1;
            }
        }
    }
}

/// All rows of `W` panels.
///
/// # Safety
/// The product has panels `first .. first + W`.
#[inline(always)]
unsafe fn columns<S: Simd, L: Element, const W: usize>(s: S, p: &Product<'_, L>, first: usize) {
    let mut converted = MaybeUninit::<Converted>::uninit();
    let mut start = 0;
    loop {
        let depth = (p.depth - start).min(DEPTH_BLOCK);
        // SAFETY: panels `first ..` hold `start + depth` times 16 numbers, as `new` has checked;
        // `converted` has room for two panels of a block.
        unsafe {
            let panels: [*const L; W] =
                std::array::from_fn(|j| p.w.add((first + j) * p.panel_stride + start * LANES));
            if L::CONVERTS && W <= MAX_WIDTH / 2 && p.rows >= CONVERT_FROM {
                let floats: [*mut f32; W] = std::array::from_fn(|j| {
                    converted.as_mut_ptr().cast::<f32>().add(j * DEPTH_BLOCK * LANES)
                });
                for (panel, floats) in panels.iter().zip(floats) {
                    for k in 0..depth {
                        s.store(floats.add(k * LANES), L::load(s, panel.add(k * LANES)));
                    }
                }
                rows(s, p, first, start, depth, floats.map(<*mut f32>::cast_const));
            } else {
                rows(s, p, first, start, depth, panels);
            }
        }
        start += depth;
        if start >= p.depth {
            break;
        }
    }
}

/// Panels of one block as `f32`.
#[repr(align(64))]
struct Converted(#[allow(dead_code)] [f32; MAX_WIDTH / 2 * DEPTH_BLOCK * LANES]);

/// All rows of `W` panels for one block of the depth.
///
/// # Safety
/// `depth` times 16 numbers can be read at each of `panels`.
#[inline(always)]
pub(super) unsafe fn rows<S: Simd, L: Element, M: Element, const W: usize>(
    s: S,
    p: &Product<'_, L>,
    first: usize,
    start: usize,
    depth: usize,
    panels: [*const M; W],
) {
    let mut row = 0;
    let cols = p.cols - first * LANES;
    macro_rules! tiles_of {
        ($height:literal, $if:expr) => {
            while $if && p.rows - row >= $height {
                // SAFETY: rows `row .. row + $height` of `x` and `y` are there, as `new` has
                // checked, and so are `cols` columns of `y` from panel `first` on.
                unsafe {
                    let x = p.x.add(row * p.x_stride + start);
                    let sums = sums::<S, M, $height, W>(s, x, p.x_stride, panels, depth);
                    let y = p.y.add(row * p.y_stride + first * LANES);
                    for r in 0..$height {
                        for j in 0..W {
                            if j * LANES < cols {
                                let y = y.add(r * p.y_stride + j * LANES);
                                put(s, sums[r][j], y, cols - j * LANES, start == 0 && !p.adds);
                            }
                        }
                    }
                }
                row += $height;
            }
        };
    }
    tiles_of!(12, S::TILE_ROWS >= 12 && W <= 2);
    tiles_of!(8, S::TILE_ROWS >= 12 && W <= 2);
    tiles_of!(6, S::TILE_ROWS == 6 && W == 1);
    tiles_of!(4, S::TILE_ROWS >= 4 && W <= 2);
    tiles_of!(2, W <= 2);
    tiles_of!(1, true);
}

/// The sums of a tile over one block.
///
/// # Safety
/// `depth` numbers can be read at each of `H` rows `stride` apart, and 16 times as many at each
/// panel.
#[inline(always)]
unsafe fn sums<S: Simd, L: Element, const H: usize, const W: usize>(
    s: S,
    x: *const f32,
    stride: usize,
    panels: [*const L; W],
    depth: usize,
) -> [[S::V; W]; H] {
    let mut sums = [[s.splat(0.0); W]; H];
    for k in 0..depth {
        // SAFETY: `k < depth`.
        unsafe {
            let mut w = [s.splat(0.0); W];
            for j in 0..W {
                w[j] = L::load(s, panels[j].add(k * LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = s.splat(*x.add(r * stride + k));
                for j in 0..W {
                    sums[j] = s.mul_add(x, w[j], sums[j]);
                }
            }
        }
    }
    sums
}

/// Writes, or adds, the first `n` lanes of a sum.
///
/// # Safety
/// `min(n, 16)` numbers can be read and written at `y`.
#[inline(always)]
unsafe fn put<S: Simd>(s: S, sum: S::V, y: *mut f32, n: usize, first: bool) {
    // SAFETY: by the caller's promise; `lanes` has room for 16.
    unsafe {
        if n >= LANES {
            s.store(y, if first { sum } else { s.add(s.load(y), sum) });
            return;
        }
        let mut lanes = [0.0f32; LANES];
        s.store(lanes.as_mut_ptr(), sum);
        for (i, lane) in lanes.iter().take(n).enumerate() {
            *y.add(i) = if first { *lane } else { *y.add(i) + lane };
        }
    }
}

impl Element for f32 {
    const CONVERTS: bool = false;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f32) -> S::V {
        // SAFETY: by the caller's promise.
        unsafe { s.load(p) }
    }
}

impl Element for f16 {
    const CONVERTS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const f16) -> S::V {
        // SAFETY: by the caller's promise.
        unsafe { s.load_f16(p) }
    }
}

impl Element for bf16 {
    const CONVERTS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const bf16) -> S::V {
        // SAFETY: by the caller's promise.
        unsafe { s.load_bf16(p) }
    }
}

impl Element for i8 {
    const CONVERTS: bool = true;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const i8) -> S::V {
        // SAFETY: by the caller's promise.
        unsafe { s.load_i8(p) }
    }
}
