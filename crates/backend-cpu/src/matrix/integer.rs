//! The integer kernel: rows of activation codes times quantised panels.
//!
//! Per block of 32 columns and per output, the codes are multiplied and summed exactly in `i32`,
//! then
//!
//! ```text
//! y ← fma(Σ (code − offset)·x, scale·x_scale, y)      and, if affine,      y ← fma(bias, x_shift, y)
//! ```
//!
//! block after block from low to high columns. Every tile does just this for each of its outputs,
//! so that a result does not depend on the tile, the chunk or the thread it was computed in.
//!
//! Many rows: panels are spread to bytes in the first-level cache, once for all of them. Few rows
//! are bound by reading the panels: codes go from memory to registers, and the lines that come next
//! are asked for in time.
#![allow(unsafe_code)]
// Rows and panels of a tile index several arrays at once.
#![allow(clippy::needless_range_loop)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tiles;

use std::mem::MaybeUninit;

use super::activations::{ActivationRows, BLOCK};
use super::form::{CHUNK, CHUNKS, Form, Width};
use super::unpack::{chunk_pair, factors, spread};
use crate::simd::{Isa, Kernel, LANES, Simd};

/// Blocks of a panel that are spread at once.
const DEPTH: usize = 16;
/// The widest tile, in panels.
const WIDTH: usize = 2;
/// Up to this many rows codes are not spread.
const FEW_ROWS: usize = 4;
/// Up to this many rows panels are read from start to end; more rows stay in the cache for one
/// stretch of columns while the panels go by.
const SOME_ROWS: usize = 16;
/// How far ahead of its use a line is asked for, in bytes. Lines go to the second-level cache: so far
/// ahead the first would not keep them, and the buffers for its misses are too few to reach the
/// bandwidth of memory (on a Zen 4 this doubles what a matrix of 94 MB gets).
const AHEAD: usize = 16 << 10;
/// Bytes that are asked for where a thread starts to read.
const AT_ONCE: usize = 4 << 10;

/// Some rows times some panels.
pub(crate) struct IntegerProduct<'a> {
    form: &'a Form,
    panels: &'a [u8],
    x: ActivationRows<'a>,
    y: *mut f32,
    y_stride: usize,
    cols: usize,
}

/// A stretch of up to two panels, spread.
#[repr(align(64))]
struct Spread {
    codes: [[u8; DEPTH * CHUNKS * CHUNK]; WIDTH],
    scales: [[f32; 2 * DEPTH * LANES]; WIDTH],
    biases: [[f32; 2 * DEPTH * LANES]; WIDTH],
}

/// A stretch of one or two panels, by pointers.
#[derive(Clone, Copy)]
struct Stretch {
    codes: [*const u8; WIDTH],
    scales: [*const f32; WIDTH],
    biases: [*const f32; WIDTH],
    first_block: usize,
    n_blocks: usize,
    /// The first of the panels.
    panel: usize,
    n_panels: usize,
}

impl<'a> IntegerProduct<'a> {
    /// Results go to rows of `cols` numbers, `y.1` apart.
    ///
    /// # Safety
    /// As many rows as `x` has can be written at `y.0`, and nothing else reads or writes them
    /// while the product lives.
    pub(crate) unsafe fn new(
        form: &'a Form,
        panels: &'a [u8],
        x: ActivationRows<'a>,
        y: (*mut f32, usize),
        cols: usize,
    ) -> Self {
        assert!(cols.div_ceil(LANES) * form.panel_bytes <= panels.len(), "panels");
        assert_eq!(x.n_blocks, form.n_blocks, "columns");
        assert!(x.codes.len() >= x.n_rows * x.n_blocks * BLOCK, "codes");
        assert!(x.scales.len() >= x.n_rows * x.n_blocks, "scales");
        assert!(x.starts.len() >= x.n_rows * x.units_per_row, "starts");
        assert!(x.shifts.len() >= x.n_rows * x.units_per_row, "shifts");
        let per_block = if form.halves { 2 } else { 1 };
        assert_eq!(x.units_per_row, x.n_blocks * per_block, "units");
        IntegerProduct { form, panels, x, y: y.0, y_stride: y.1, cols }
    }

    /// Computes it. Each stretch and each tile is a kernel of its own, so that the many shapes of
    /// tiles are compiled once per instruction set; a call costs little beside a tile.
    pub(crate) fn run(&self, isa: Isa) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if isa.tiles().is_some_and(|tiles| tiles::run(self, tiles)) {
            return;
        }
        let mut room = MaybeUninit::<Spread>::uninit();
        let room = room.as_mut_ptr();
        let few = self.x.n_rows <= FEW_ROWS;
        let width = if few { 1 } else { isa.run_integers(TileWidth) };
        let n_panels = self.cols.div_ceil(LANES);
        let some = |panel: usize, first_block: usize| {
            let n_panels = width.min(n_panels - panel);
            let unpack =
                Unpack { product: self, room, spread_codes: !few, panel, n_panels, first_block };
            let stretch = isa.run(unpack);
            let mut row = 0;
            while row < self.x.n_rows {
                row += if few {
                    isa.run_integers(NarrowTile { product: self, stretch: &stretch, row })
                } else {
                    isa.run_integers(Tile { product: self, stretch: &stretch, row })
                };
            }
        };
        if self.x.n_rows <= SOME_ROWS {
            for panel in (0..n_panels).step_by(width) {
                for first in (0..self.form.n_blocks).step_by(DEPTH) {
                    some(panel, first);
                }
            }
        } else {
            for first in (0..self.form.n_blocks).step_by(DEPTH) {
                for panel in (0..n_panels).step_by(width) {
                    some(panel, first);
                }
            }
        }
    }
}

/// Panels side by side in a tile.
struct TileWidth;

impl Kernel for TileWidth {
    type Output = usize;

    #[inline(always)]
    fn call<S: Simd>(self, _: S) -> usize {
        S::INT_TILE_PANELS
    }
}

/// Spreads a stretch of panels. `panel .. panel + n_panels` are panels of the product.
struct Unpack<'a> {
    product: &'a IntegerProduct<'a>,
    room: *mut Spread,
    spread_codes: bool,
    panel: usize,
    n_panels: usize,
    first_block: usize,
}

impl Kernel for Unpack<'_> {
    type Output = Stretch;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> Stretch {
        let Unpack { product, room, spread_codes, panel, n_panels, first_block } = self;
        let form = product.form;
        let n_blocks = (form.n_blocks - first_block).min(DEPTH);
        let per_block = if form.halves { 2 } else { 1 };
        let units = (first_block * per_block, n_blocks * per_block);
        let mut stretch = Stretch {
            codes: [std::ptr::null(); WIDTH],
            scales: [std::ptr::null(); WIDTH],
            biases: [std::ptr::null(); WIDTH],
            first_block,
            n_blocks,
            panel,
            n_panels,
        };
        for j in 0..n_panels {
            // SAFETY: the product has this panel, and `room` has room for `DEPTH` blocks of two.
            unsafe {
                let panel = product.panels.as_ptr().add((panel + j) * form.panel_bytes);
                let from = panel.add(form.codes + first_block * form.width.block_bytes());
                stretch.codes[j] = if !spread_codes || form.width == Width::Eight {
                    from
                } else {
                    let codes = (&raw mut (*room).codes[j]).cast::<u8>();
                    spread(s, form.width, from, codes, n_blocks);
                    codes
                };
                let scales = (&raw mut (*room).scales[j]).cast::<f32>();
                factors(s, form, panel, false, units, scales);
                stretch.scales[j] = scales;
                let biases = (&raw mut (*room).biases[j]).cast::<f32>();
                if form.layout.affine {
                    factors(s, form, panel, true, units, biases);
                }
                stretch.biases[j] = biases;
            }
        }
        stretch
    }
}

/// The rows of a product from `row` on times a stretch, as many as one tile has; returns how many.
/// There is at least one such row.
struct Tile<'a> {
    product: &'a IntegerProduct<'a>,
    stretch: &'a Stretch,
    row: usize,
}

impl Kernel for Tile<'_> {
    type Output = usize;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> usize {
        let form = self.product.form;
        // Where all codes are alike to `dot`, wide ones need no code of their own.
        let wide = S::DOT_IS_NARROW && form.width == Width::Eight;
        match (wide, form.halves) {
            (true, false) => self.rows::<S, true, false>(s),
            (true, true) => self.rows::<S, true, true>(s),
            (false, false) => self.rows::<S, false, false>(s),
            (false, true) => self.rows::<S, false, true>(s),
        }
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn rows<S: Simd, const WIDE: bool, const HALVES: bool>(&self, s: S) -> usize {
        let left = self.product.x.n_rows - self.row;
        macro_rules! tile_of {
            ($height:literal) => {
                if S::INT_TILE_ROWS >= $height && left >= $height {
                    // SAFETY: those rows are there, and so are the stretch's panels.
                    unsafe {
                        if S::INT_TILE_PANELS == 2 && self.stretch.n_panels == 2 {
                            self.tile::<S, WIDE, HALVES, $height, 2>(s);
                        } else {
                            self.tile::<S, WIDE, HALVES, $height, 1>(s);
                        }
                    }
                    return $height;
                }
            };
        }
        tile_of!(6);
        tile_of!(4);
        tile_of!(2);
        tile_of!(1);
        unreachable!("a row is left")
    }

    /// # Safety
    /// Rows `row .. row + H` are there, and `W` panels.
    #[inline(always)]
    unsafe fn tile<
        S: Simd,
        const WIDE: bool,
        const HALVES: bool,
        const H: usize,
        const W: usize,
    >(
        &self,
        s: S,
    ) {
        let (product, stretch, row) = (self.product, self.stretch, self.row);
        let (x, affine) = (&product.x, product.form.layout.affine);
        let per_block = if HALVES { 2 } else { 1 };
        let (codes_stride, first) = (x.n_blocks * BLOCK, stretch.first_block);
        // SAFETY: all within the lengths that `new` has checked.
        unsafe {
            let codes = x.codes.as_ptr().add(row * codes_stride + first * BLOCK);
            let scales = x.scales.as_ptr().add(row * x.n_blocks + first);
            let unit = row * x.units_per_row + first * per_block;
            let starts = x.starts.as_ptr().add(unit);
            let shifts = x.shifts.as_ptr().add(unit);
            let y = product.y.add(row * product.y_stride + stretch.panel * LANES);
            let cols = product.cols - stretch.panel * LANES;
            let mut sums = [[s.splat(0.0); W]; H];
            if first > 0 {
                for r in 0..H {
                    for j in 0..W {
                        let y = y.add(r * product.y_stride + j * LANES);
                        sums[r][j] = take(s, y, cols - j * LANES);
                    }
                }
            }
            for b in 0..stretch.n_blocks {
                for half in 0..per_block {
                    let u = b * per_block + half;
                    let mut ints = [[s.splat_int(0); W]; H];
                    for (r, ints) in ints.iter_mut().enumerate() {
                        *ints = [s.splat_int(*starts.add(r * x.units_per_row + u)); W];
                    }
                    let n = CHUNKS / per_block;
                    let chunks = (b * CHUNKS + half * n, n);
                    let panels = *stretch.codes.first_chunk::<W>().expect("`W` panels");
                    s.dot_chunks::<WIDE, H, W>(&mut ints, panels, (codes, codes_stride), chunks);
                    let mut w_scales = [s.splat(0.0); W];
                    for j in 0..W {
                        w_scales[j] = s.load(stretch.scales[j].add(u * LANES));
                    }
                    for r in 0..H {
                        let x_scale = s.splat(*scales.add(r * x.n_blocks + b));
                        for j in 0..W {
                            let scale = s.mul(w_scales[j], x_scale);
                            let int = s.ints_to_floats(ints[r][j]);
                            sums[r][j] = s.mul_add(int, scale, sums[r][j]);
                        }
                    }
                    if affine {
                        for r in 0..H {
                            let shift = s.splat(*shifts.add(r * x.units_per_row + u));
                            for j in 0..W {
                                let bias = s.load(stretch.biases[j].add(u * LANES));
                                sums[r][j] = s.mul_add(bias, shift, sums[r][j]);
                            }
                        }
                    }
                }
            }
            for r in 0..H {
                for j in 0..W {
                    let y = y.add(r * product.y_stride + j * LANES);
                    put(s, sums[r][j], y, cols - j * LANES);
                }
            }
        }
    }
}

/// Like [`Tile`] with one panel, whose codes are as they stand in the panel.
struct NarrowTile<'a> {
    product: &'a IntegerProduct<'a>,
    stretch: &'a Stretch,
    row: usize,
}

impl Kernel for NarrowTile<'_> {
    type Output = usize;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> usize {
        match (self.product.form.width, self.product.form.halves) {
            (Width::Four, false) => self.rows::<S, 4, false, false>(s),
            (Width::Four, true) => self.rows::<S, 4, false, true>(s),
            (Width::Five, false) => self.rows::<S, 5, false, false>(s),
            (Width::Five, true) => self.rows::<S, 5, false, true>(s),
            (Width::Six, false) => self.rows::<S, 6, false, false>(s),
            (Width::Six, true) => self.rows::<S, 6, false, true>(s),
            (Width::Eight, false) => self.rows::<S, 8, true, false>(s),
            (Width::Eight, true) => self.rows::<S, 8, true, true>(s),
        }
    }
}

impl NarrowTile<'_> {
    #[inline(always)]
    fn rows<S: Simd, const BITS: usize, const WIDE: bool, const HALVES: bool>(
        &self,
        s: S,
    ) -> usize {
        let left = self.product.x.n_rows - self.row;
        // SAFETY: those rows are there, and so is the stretch's panel.
        unsafe {
            if left >= 4 {
                self.tile::<S, BITS, WIDE, HALVES, 4>(s);
                return 4;
            }
            if left >= 2 {
                self.tile::<S, BITS, WIDE, HALVES, 2>(s);
                return 2;
            }
            self.tile::<S, BITS, WIDE, HALVES, 1>(s);
            1
        }
    }

    /// # Safety
    /// Rows `row .. row + H` are there.
    #[inline(always)]
    unsafe fn tile<
        S: Simd,
        const BITS: usize,
        const WIDE: bool,
        const HALVES: bool,
        const H: usize,
    >(
        &self,
        s: S,
    ) {
        let (product, stretch, row) = (self.product, self.stretch, self.row);
        let (x, affine) = (&product.x, product.form.layout.affine);
        let per_block = if HALVES { 2 } else { 1 };
        let (codes_stride, first) = (x.n_blocks * BLOCK, stretch.first_block);
        // SAFETY: all within the lengths that `new` has checked; asking for a line is no access.
        unsafe {
            let x_codes = x.codes.as_ptr().add(row * codes_stride + first * BLOCK);
            let x_scales = x.scales.as_ptr().add(row * x.n_blocks + first);
            let unit = row * x.units_per_row + first * per_block;
            let starts = x.starts.as_ptr().add(unit);
            let shifts = x.shifts.as_ptr().add(unit);
            let y = product.y.add(row * product.y_stride + stretch.panel * LANES);
            let cols = product.cols - stretch.panel * LANES;
            let mut sums = [s.splat(0.0); H];
            if first > 0 {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = take(s, y.add(r * product.y_stride), cols);
                }
            }
            if stretch.panel == 0 && first == 0 && row == 0 {
                for line in 0..AT_ONCE / CHUNK {
                    s.prefetch(stretch.codes[0].wrapping_add(line * CHUNK));
                }
            }
            if first == 0 && row == 0 {
                // All scales of a panel are read before the codes after its first stretch.
                let form = product.form;
                let next = stretch.codes[0].wrapping_add(form.n_blocks * BITS * CHUNK);
                for line in 0..form.codes / CHUNK {
                    s.prefetch(next.wrapping_add(line * CHUNK));
                }
            }
            for b in 0..stretch.n_blocks {
                let from = stretch.codes[0].add(b * BITS * CHUNK);
                for line in 0..BITS {
                    s.prefetch(from.wrapping_add(AHEAD + line * CHUNK));
                }
                let start = |r: usize, half: usize| {
                    s.splat_int(*starts.add(r * x.units_per_row + b * per_block + half))
                };
                // Chunks 0 to 3 are the first half of a block, 4 to 7 the second.
                let mut low_ints = [s.splat_int(0); H];
                let mut high_ints = [s.splat_int(0); H];
                for r in 0..H {
                    low_ints[r] = start(r, 0);
                    if HALVES {
                        high_ints[r] = start(r, 1);
                    }
                }
                for i in 0..4 {
                    let (low, high) = chunk_pair::<S, BITS>(s, from, i);
                    for r in 0..H {
                        let x = x_codes.add(r * codes_stride + b * BLOCK + i * 4);
                        low_ints[r] = s.dot::<WIDE>(low_ints[r], low, s.splat_quad(x));
                        let x = s.splat_quad(x.add(BLOCK / 2));
                        if HALVES {
                            high_ints[r] = s.dot::<WIDE>(high_ints[r], high, x);
                        } else {
                            low_ints[r] = s.dot::<WIDE>(low_ints[r], high, x);
                        }
                    }
                }
                for half in 0..per_block {
                    let u = b * per_block + half;
                    let w_scale = s.load(stretch.scales[0].add(u * LANES));
                    let ints = if half == 0 { &low_ints } else { &high_ints };
                    for r in 0..H {
                        let scale = s.mul(w_scale, s.splat(*x_scales.add(r * x.n_blocks + b)));
                        sums[r] = s.mul_add(s.ints_to_floats(ints[r]), scale, sums[r]);
                    }
                    if affine {
                        let bias = s.load(stretch.biases[0].add(u * LANES));
                        for (r, sum) in sums.iter_mut().enumerate() {
                            let shift = s.splat(*shifts.add(r * x.units_per_row + u));
                            *sum = s.mul_add(bias, shift, *sum);
                        }
                    }
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                put(s, sum, y.add(r * product.y_stride), cols);
            }
        }
    }
}

/// Reads up to 16 numbers.
///
/// # Safety
/// `min(n, 16)` numbers can be read at `y`.
#[inline(always)]
unsafe fn take<S: Simd>(s: S, y: *const f32, n: usize) -> S::V {
    // SAFETY: by the caller's promise; `lanes` has 16.
    unsafe {
        if n >= LANES {
            return s.load(y);
        }
        let mut lanes = [0.0f32; LANES];
        std::ptr::copy_nonoverlapping(y, lanes.as_mut_ptr(), n);
        s.load(lanes.as_ptr())
    }
}

/// Writes up to 16 numbers.
///
/// # Safety
/// `min(n, 16)` numbers can be written at `y`.
#[inline(always)]
unsafe fn put<S: Simd>(s: S, v: S::V, y: *mut f32, n: usize) {
    // SAFETY: by the caller's promise; `lanes` has room for 16.
    unsafe {
        if n >= LANES {
            return s.store(y, v);
        }
        let mut lanes = [0.0f32; LANES];
        s.store(lanes.as_mut_ptr(), v);
        std::ptr::copy_nonoverlapping(lanes.as_ptr(), y, n);
    }
}
