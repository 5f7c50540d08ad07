//! The integer kernel on machines with tiles of bytes.
//!
//! A product of tiles is 16 tokens × 16 outputs over a block of columns, exact in `i32`.
//! It is written to memory and added to sums in `f32` from there, by the rule of `integer` and in its
//! order, so that results are those of any other kernel, to the bit.
//!
//! Tiles work on the products of the next blocks while vectors add up those of this one. The sums of
//! a tile stay in registers for a whole stretch, and little else is written: beside tiles wide
//! vectors run at half their speed, and products that leave the first-level cache cost twice.
#![allow(unsafe_code)]
// Rows of a tile index several arrays at once.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;

use super::IntegerProduct;
use crate::matrix::activations::BLOCK;
use crate::matrix::form::{CHUNK, CHUNKS, Form, Width};
use crate::matrix::unpack::{chunk_pair, factors};
use crate::simd::amx::{
    PRODUCT, TILE_ROWS, TileWork, Tiles, TokenNumbers, TokenRows, add_bias, add_product, finish,
    multiply,
};
use crate::simd::{Avx512, LANES, Simd};

/// Fewer rows gain nothing: a tile that is half full takes the time of a full one.
const LEAST_ROWS: usize = 2 * TILE_ROWS;
/// Blocks of a panel that are spread at once.
const DEPTH: usize = 32;
/// Places for products that were not added up yet.
const PLACES: usize = 4;
/// How many blocks products are ahead of sums. The last one of them is not written yet.
const AHEAD: usize = 3;

type Vector = <Avx512<true> as Simd>::V;
type Sums = [Vector; TILE_ROWS];

/// How codes less their offset are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    /// They fit signed ones; so much is taken off each.
    Signed(u8),
    /// They are unsigned, as they stand in a panel.
    AsStored,
}

impl Bytes {
    fn of(form: &Form) -> Option<Self> {
        let (bits, offset) = (u32::from(form.layout.bits), i32::from(form.layout.offset));
        let (least, most) = (-offset, (1 << bits) - 1 - offset);
        if least >= i32::from(i8::MIN) && most <= i32::from(i8::MAX) {
            Some(Bytes::Signed(form.layout.offset))
        } else {
            (offset == 0 && form.width == Width::Eight).then_some(Bytes::AsStored)
        }
    }
}

/// Computes a product, or says that it is better, or must be, computed without tiles. Blocks with
/// two scales are twice as many products, and tiles were slower than vectors.
pub(super) fn run(product: &IntegerProduct<'_>, (s, tiles): (Avx512<true>, Tiles)) -> bool {
    let gains = product.x.n_rows >= LEAST_ROWS && !product.form.halves;
    let Some(bytes) = Bytes::of(product.form).filter(|_| gains) else {
        return false;
    };
    match bytes {
        Bytes::Signed(offset) => tiles.run(s, Work::<true> { product, offset }),
        Bytes::AsStored => tiles.run(s, Work::<false> { product, offset: 0 }),
    }
    true
}

struct Work<'a, const SIGNED: bool> {
    product: &'a IntegerProduct<'a>,
    offset: u8,
}

/// What a thread works in; most of it stays in the first-level cache.
#[repr(align(64))]
struct Room {
    products: [[i32; PRODUCT]; PLACES],
    codes: [u8; DEPTH * CHUNKS * CHUNK],
    scales: [f32; DEPTH * LANES],
    biases: [f32; DEPTH * LANES],
    last_codes: [[i8; DEPTH * BLOCK]; TILE_ROWS],
    last_scales: [[f32; DEPTH]; TILE_ROWS],
    last_shifts: [[f32; DEPTH]; TILE_ROWS],
}

/// Blocks of a stretch.
#[derive(Clone, Copy)]
struct Blocks {
    first: usize,
    n: usize,
}

/// A stretch of a panel.
#[derive(Clone, Copy)]
struct Panel {
    codes: *const u8,
    scales: *const f32,
    biases: *const f32,
    /// Where its results of the first row go, and how many there are.
    y: *mut f32,
    cols: usize,
    blocks: Blocks,
}

/// Up to sixteen tokens of a stretch; those after the last are zeros.
#[derive(Clone, Copy)]
struct Tokens {
    codes: TokenRows,
    scales: TokenNumbers,
    shifts: TokenNumbers,
    first: usize,
    n: usize,
}

/// The product that is started next.
struct Feed {
    tokens: Tokens,
    block: usize,
    /// Products that were started.
    n: usize,
    /// Where the last one goes.
    last: *mut i32,
    places: *mut i32,
}

impl<const SIGNED: bool> TileWork for Work<'_, SIGNED> {
    fn depth(&self) -> usize {
        BLOCK
    }

    #[inline(always)]
    unsafe fn call(self, s: Avx512<true>) {
        let form = self.product.form;
        let mut room = MaybeUninit::<Room>::uninit();
        let room = room.as_mut_ptr();
        let n_panels = self.product.cols.div_ceil(LANES);
        // Stretches of equal lengths, as well as can be.
        let step = form.n_blocks.div_ceil(form.n_blocks.div_ceil(DEPTH).max(1)).max(1);
        for first in (0..form.n_blocks).step_by(step) {
            let blocks = Blocks { first, n: (form.n_blocks - first).min(step) };
            // SAFETY: each panel and block is the product's, and the last tokens are kept.
            unsafe {
                self.keep_last_tokens(blocks, room);
                for panel in 0..n_panels {
                    self.stretch(s, blocks, panel, room);
                }
            }
        }
    }
}

impl<const SIGNED: bool> Work<'_, SIGNED> {
    /// Copies the tokens that do not fill a tile, zeros after them.
    ///
    /// # Safety
    /// `room` can be written, and nothing borrows from it.
    unsafe fn keep_last_tokens(&self, blocks: Blocks, room: *mut Room) {
        let x = &self.product.x;
        let (n, first) = (x.n_rows % TILE_ROWS, x.n_rows / TILE_ROWS * TILE_ROWS);
        if n == 0 {
            return;
        }
        // SAFETY: by the caller's promise; zeros are a value of each part.
        let (codes, scales, shifts) = unsafe {
            (&raw mut (*room).last_codes).write_bytes(0, 1);
            (&raw mut (*room).last_scales).write_bytes(0, 1);
            (&raw mut (*room).last_shifts).write_bytes(0, 1);
            (&mut (*room).last_codes, &mut (*room).last_scales, &mut (*room).last_shifts)
        };
        let n_codes = blocks.n * BLOCK;
        for i in 0..n {
            let block = (first + i) * x.n_blocks + blocks.first;
            codes[i][..n_codes].copy_from_slice(&x.codes[block * BLOCK..][..n_codes]);
            scales[i][..blocks.n].copy_from_slice(&x.scales[block..][..blocks.n]);
            shifts[i][..blocks.n].copy_from_slice(&x.shifts[block..][..blocks.n]);
        }
    }

    /// All tokens times a stretch of a panel.
    ///
    /// # Safety
    /// As [`TileWork::call`]. The product has those blocks and that panel, and the room holds the
    /// last tokens of this stretch.
    #[inline(always)]
    unsafe fn stretch(&self, s: Avx512<true>, blocks: Blocks, panel: usize, room: *mut Room) {
        // SAFETY: by the caller's promise.
        unsafe {
            let panel = self.unpack(s, blocks, panel, room);
            if self.product.form.layout.affine {
                self.tokens::<true>(s, &panel, room);
            } else {
                self.tokens::<false>(s, &panel, room);
            }
        }
    }

    /// # Safety
    /// As [`Work::stretch`].
    #[inline(always)]
    unsafe fn unpack(
        &self,
        s: Avx512<true>,
        blocks: Blocks,
        index: usize,
        room: *mut Room,
    ) -> Panel {
        let form = self.product.form;
        let units = (blocks.first, blocks.n);
        // SAFETY: the product has this panel, and `room` has room for `DEPTH` blocks.
        unsafe {
            let panel = self.product.panels.as_ptr().add(index * form.panel_bytes);
            let from = panel.add(form.codes + blocks.first * form.width.block_bytes());
            let codes = (&raw mut (*room).codes).cast::<u8>();
            match form.width {
                _ if !SIGNED => {}
                Width::Four => self.spread::<4>(s, from, codes, blocks.n),
                Width::Five => self.spread::<5>(s, from, codes, blocks.n),
                Width::Six => self.spread::<6>(s, from, codes, blocks.n),
                Width::Eight => self.spread::<8>(s, from, codes, blocks.n),
            }
            let scales = (&raw mut (*room).scales).cast::<f32>();
            factors(s, form, panel, false, units, scales);
            let biases = (&raw mut (*room).biases).cast::<f32>();
            if form.layout.affine {
                factors(s, form, panel, true, units, biases);
            }
            Panel {
                codes: if SIGNED { codes } else { from },
                scales,
                biases,
                y: self.product.y.add(index * LANES),
                cols: self.product.cols - index * LANES,
                blocks,
            }
        }
    }

    /// Spreads `n` blocks to signed bytes.
    ///
    /// # Safety
    /// The blocks can be read at `from`, and `n` times 512 bytes written at `to`.
    #[inline(always)]
    unsafe fn spread<const BITS: usize>(
        &self,
        s: Avx512<true>,
        from: *const u8,
        to: *mut u8,
        n: usize,
    ) {
        for b in 0..n {
            // SAFETY: a block is `BITS` chunks long, and eight when spread.
            unsafe {
                let (from, to) = (from.add(b * BITS * CHUNK), to.add(b * CHUNKS * CHUNK));
                for i in 0..4 {
                    let (low, high) = chunk_pair::<_, BITS>(s, from, i);
                    s.store_quads(to.add(i * CHUNK), s.sub_bytes(low, self.offset));
                    s.store_quads(to.add((i + 4) * CHUNK), s.sub_bytes(high, self.offset));
                }
            }
        }
    }

    /// All tokens times a spread panel.
    ///
    /// # Safety
    /// As [`Work::stretch`].
    #[inline(always)]
    unsafe fn tokens<const AFFINE: bool>(&self, s: Avx512<true>, panel: &Panel, room: *mut Room) {
        let (n_rows, n_blocks) = (self.product.x.n_rows, panel.blocks.n);
        let n_products = n_rows.div_ceil(TILE_ROWS) * n_blocks;
        // SAFETY: blocks, rows and places are there; `AHEAD` products and the one that is added up
        // have places of their own, and each is written before it is added up.
        unsafe {
            let places = (&raw mut (*room).products).cast::<i32>();
            let tokens = self.tokens_from(0, panel.blocks, room);
            let mut feed = Feed { tokens, block: 0, n: 0, last: places, places };
            for _ in 0..n_products.min(AHEAD) {
                self.feed(&mut feed, panel, room);
            }
            let mut place = 0;
            for first in (0..n_rows).step_by(TILE_ROWS) {
                let tokens = self.tokens_from(first, panel.blocks, room);
                let mut sums = self.take_sums(s, &tokens, panel);
                for block in 0..n_blocks {
                    if feed.n < n_products {
                        self.feed(&mut feed, panel, room);
                    } else {
                        finish(!feed.n.is_multiple_of(2), feed.last);
                    }
                    let product = places.add(place % PLACES * PRODUCT);
                    add_up::<AFFINE>(&mut sums, product, &tokens, panel, block);
                    place += 1;
                }
                self.put_sums(s, sums, &tokens, panel);
            }
        }
    }

    /// Starts a product.
    ///
    /// # Safety
    /// As [`Work::stretch`]; there is one left.
    #[inline(always)]
    unsafe fn feed(&self, feed: &mut Feed, panel: &Panel, room: *const Room) {
        // SAFETY: by the caller's promise.
        unsafe {
            if feed.block == panel.blocks.n {
                feed.tokens = self.tokens_from(feed.tokens.first + TILE_ROWS, panel.blocks, room);
                feed.block = 0;
            }
            let (x, stride) = feed.tokens.codes;
            let x = (x.add(feed.block * BLOCK), stride);
            let codes = panel.codes.add(feed.block * BLOCK * LANES);
            multiply::<SIGNED>(!feed.n.is_multiple_of(2), x, codes, feed.last);
            feed.last = feed.places.add(feed.n % PLACES * PRODUCT);
        }
        feed.block += 1;
        feed.n += 1;
    }

    /// The tokens of one tile.
    ///
    /// # Safety
    /// As [`Work::stretch`]; `first` is a row of the product.
    #[inline(always)]
    unsafe fn tokens_from(&self, first: usize, blocks: Blocks, room: *const Room) -> Tokens {
        let x = &self.product.x;
        let n = (x.n_rows - first).min(TILE_ROWS);
        // SAFETY: rows and blocks are there, as `IntegerProduct::new` has checked.
        unsafe {
            if n < TILE_ROWS {
                let codes = (&raw const (*room).last_codes).cast::<i8>();
                let scales = (&raw const (*room).last_scales).cast::<f32>();
                let shifts = (&raw const (*room).last_shifts).cast::<f32>();
                let (codes, scales) = ((codes, DEPTH * BLOCK), (scales, DEPTH));
                return Tokens { codes, scales, shifts: (shifts, DEPTH), first, n };
            }
            let block = first * x.n_blocks + blocks.first;
            Tokens {
                codes: (x.codes.as_ptr().add(block * BLOCK), x.n_blocks * BLOCK),
                scales: (x.scales.as_ptr().add(block), x.n_blocks),
                shifts: (x.shifts.as_ptr().add(block), x.n_blocks),
                first,
                n,
            }
        }
    }

    /// The sums so far; nothing for tokens that are not there. Sums are never picked by a number
    /// that is not known here: they would live in memory.
    ///
    /// # Safety
    /// As [`Work::stretch`].
    #[inline(always)]
    unsafe fn take_sums(&self, s: Avx512<true>, tokens: &Tokens, panel: &Panel) -> Sums {
        let mut sums = [s.splat(0.0); TILE_ROWS];
        if panel.blocks.first == 0 {
            return sums;
        }
        // SAFETY: each token that is there has as many results as are left.
        unsafe {
            if tokens.n == TILE_ROWS && panel.cols >= LANES {
                for r in 0..TILE_ROWS {
                    sums[r] = s.load(self.results(tokens, r, panel));
                }
            } else {
                let mut rows = [[0.0f32; LANES]; TILE_ROWS];
                for (r, row) in rows.iter_mut().enumerate().take(tokens.n) {
                    let y = self.results(tokens, r, panel);
                    y.copy_to_nonoverlapping(row.as_mut_ptr(), panel.cols.min(LANES));
                }
                for r in 0..TILE_ROWS {
                    sums[r] = s.load(rows[r].as_ptr());
                }
            }
        }
        sums
    }

    /// Writes the sums of tokens that are there.
    ///
    /// # Safety
    /// As [`Work::stretch`].
    #[inline(always)]
    unsafe fn put_sums(&self, s: Avx512<true>, sums: Sums, tokens: &Tokens, panel: &Panel) {
        // SAFETY: each token that is there has as many results as are left.
        unsafe {
            if tokens.n == TILE_ROWS && panel.cols >= LANES {
                for r in 0..TILE_ROWS {
                    s.store(self.results(tokens, r, panel), sums[r]);
                }
            } else {
                let mut rows = [[0.0f32; LANES]; TILE_ROWS];
                for r in 0..TILE_ROWS {
                    s.store(rows[r].as_mut_ptr(), sums[r]);
                }
                for (r, row) in rows.iter().enumerate().take(tokens.n) {
                    let y = self.results(tokens, r, panel);
                    y.copy_from_nonoverlapping(row.as_ptr(), panel.cols.min(LANES));
                }
            }
        }
    }

    /// Where the results of a token that is there are.
    ///
    /// # Safety
    /// As [`Work::stretch`]; `r` is below the number of tokens.
    #[inline(always)]
    unsafe fn results(&self, tokens: &Tokens, r: usize, panel: &Panel) -> *mut f32 {
        // SAFETY: by the caller's promise.
        unsafe { panel.y.add((tokens.first + r) * self.product.y_stride) }
    }
}

/// Adds the product of one block to sums.
///
/// # Safety
/// The product, the tokens and the block are there.
#[inline(always)]
unsafe fn add_up<const AFFINE: bool>(
    sums: &mut Sums,
    product: *const i32,
    tokens: &Tokens,
    panel: &Panel,
    block: usize,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let (x_scales, stride) = tokens.scales;
        let x_scales = (x_scales.add(block), stride);
        add_product(sums, product, panel.scales.add(block * LANES), x_scales);
        if AFFINE {
            let (shifts, stride) = tokens.shifts;
            add_bias(sums, panel.biases.add(block * LANES), (shifts.add(block), stride));
        }
    }
}
