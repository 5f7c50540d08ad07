//! AMX: products of tiles of bytes.
//!
//! Tiles are the state of a thread. [`Tiles::run`] gives them their shapes and lets go of them in the
//! end, so that the system saves nothing for a thread that does not multiply.

mod detect;

use std::arch::asm;
use std::arch::x86_64::{__m512, __m512i, _mm512_set1_epi8, _mm512_sub_epi8};
use std::sync::OnceLock;

use super::Avx512;

/// Rows of a tile: tokens of a product.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a row of the largest tile.
const LINE: usize = 64;
/// `i32` of a product of two tiles.
pub(crate) const PRODUCT: usize = TILE_ROWS * LINE / 4;

/// Proof of tiles of bytes, and of leave to use them.
#[derive(Clone, Copy)]
pub(crate) struct Tiles(());

/// Work with tiles. `call` must be `#[inline(always)]`, and so must everything in it that touches
/// vectors or tiles.
pub(crate) trait TileWork {
    /// Columns of a product, a multiple of 4 up to 64.
    fn depth(&self) -> usize;

    /// The work.
    ///
    /// # Safety
    /// The machine has what [`Tiles`] proves, and tiles have their shapes.
    unsafe fn call(self, s: Avx512<true>);
}

impl Tiles {
    /// Looks once per process.
    pub(crate) fn detect() -> Option<Self> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let found = FOUND.get_or_init(detect::has_tiles);
        found.then_some(Tiles(()))
    }

    /// Runs work with tiles of its shapes.
    #[inline]
    pub(crate) fn run<W: TileWork>(self, s: Avx512<true>, work: W) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,avx512vnni")]
        fn run<W: TileWork>(s: Avx512<true>, work: W) {
            // SAFETY: the features are on, and the caller has configured tiles.
            unsafe { work.call(s) }
        }
        let shapes = Shapes::new(work.depth());
        // SAFETY: `self` and `s` exist, so the instructions were detected. The shapes are legal.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags));
            run(s, work);
            asm!("tilerelease", options(nostack, nomem, preserves_flags));
        }
    }
}

impl Avx512<true> {
    /// Takes a number off each byte.
    #[inline(always)]
    pub(crate) fn sub_bytes(self, q: __m512i, x: u8) -> __m512i {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe { _mm512_sub_epi8(q, _mm512_set1_epi8(x.cast_signed())) }
    }
}

/// The shapes of tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Tiles 0 and 2 hold 16 tokens × `depth`, tiles 1 and 3 hold `depth` × 16 outputs by fours,
    /// tiles 4 and 5 the products, 16 tokens × 16 outputs.
    fn new(depth: usize) -> Self {
        assert!(depth.is_multiple_of(4) && (4..=LINE).contains(&depth), "tiles");
        let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
        for tile in [0, 2] {
            (row_bytes[tile], rows[tile]) = (depth as u16, TILE_ROWS as u8);
        }
        for tile in [1, 3] {
            (row_bytes[tile], rows[tile]) = (LINE as u16, (depth / 4) as u8);
        }
        for tile in [4, 5] {
            (row_bytes[tile], rows[tile]) = (LINE as u16, TILE_ROWS as u8);
        }
        Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
    }
}

/// Rows of tokens, as a tile reads them: the first byte, and how far rows are apart.
pub(crate) type TokenRows = (*const i8, usize);

/// Starts a product of 16 tokens and the 16 outputs of a panel, whose codes are signed if `SIGNED`,
/// and writes the one that was started before it, [`PRODUCT`] numbers, to `last`: a product takes its
/// time, and nothing waits for it. `odd` alternates from product to product.
///
/// # Safety
/// Within [`TileWork::call`]. As many bytes as the shapes say can be read at `x` and `codes`, and a
/// product written at `last`.
#[inline(always)]
pub(crate) unsafe fn multiply<const SIGNED: bool>(
    odd: bool,
    (x, stride): TokenRows,
    codes: *const u8,
    last: *mut i32,
) {
    macro_rules! step {
        ($tokens:literal, $codes:literal, $multiply:literal, $product:literal, $last:literal) => {
            asm!(
                concat!("tileloadd ", $tokens, ", [{x} + {stride}]"),
                concat!("tileloadd ", $codes, ", [{codes} + {line}]"),
                concat!("tilezero ", $product),
                concat!($multiply, " ", $product, ", ", $tokens, ", ", $codes),
                concat!("tilestored [{last} + {line}], ", $last),
                x = in(reg) x,
                stride = in(reg) stride,
                codes = in(reg) codes,
                line = in(reg) LINE,
                last = in(reg) last,
                options(nostack, preserves_flags),
            )
        };
    }
    // SAFETY: by the caller's promise.
    unsafe {
        match (SIGNED, odd) {
            (true, false) => step!("tmm0", "tmm1", "tdpbssd", "tmm4", "tmm5"),
            (true, true) => step!("tmm2", "tmm3", "tdpbssd", "tmm5", "tmm4"),
            (false, false) => step!("tmm0", "tmm1", "tdpbsud", "tmm4", "tmm5"),
            (false, true) => step!("tmm2", "tmm3", "tdpbsud", "tmm5", "tmm4"),
        }
    }
}

/// Writes the product that was started last, as [`multiply`] does.
///
/// # Safety
/// Within [`TileWork::call`], and a product can be written at `last`.
#[inline(always)]
pub(crate) unsafe fn finish(odd: bool, last: *mut i32) {
    macro_rules! store {
        ($last:literal) => {
            asm!(
                concat!("tilestored [{last} + {line}], ", $last),
                line = in(reg) LINE,
                last = in(reg) last,
                options(nostack, preserves_flags),
            )
        };
    }
    // SAFETY: by the caller's promise.
    unsafe { if odd { store!("tmm4") } else { store!("tmm5") } }
}

/// A number for each of 16 tokens: the first, and how far they are apart.
pub(crate) type TokenNumbers = (*const f32, usize);

/// Adds a product to the sums of its tokens: `sum ← fma(product, w · x, sum)` with 16 factors `w`
/// and one `x` for each token.
///
/// Compilers keep neither the order nor the sums in their registers. Beside tiles wide vectors run
/// at half their speed, and each instruction more costs its full time.
///
/// # Safety
/// Within [`TileWork::call`]. All these numbers can be read.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn add_product(
    sums: &mut [__m512; TILE_ROWS],
    product: *const i32,
    w: *const f32,
    (x, stride): TokenNumbers,
) {
    macro_rules! row {
        ($sum:literal, $at:literal, $x:literal, $number:literal, $scale:literal) => {
            concat!(
                concat!("vcvtdq2ps ", $number, ", [{product} + ", $at, "]\n"),
                concat!("vmulps ", $scale, ", zmm0, dword ptr [", $x, "]{{1to16}}\n"),
                concat!("vfmadd231ps ", $sum, ", ", $number, ", ", $scale),
            )
        };
    }
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "vmovups zmm0, [{w}]",
            row!("zmm16", "0", "{x0}", "zmm1", "zmm2"),
            row!("zmm17", "64", "{x0} + {s1}", "zmm3", "zmm4"),
            row!("zmm18", "128", "{x0} + 2 * {s1}", "zmm5", "zmm6"),
            row!("zmm19", "192", "{x0} + {s3}", "zmm7", "zmm8"),
            row!("zmm20", "256", "{x1}", "zmm1", "zmm2"),
            row!("zmm21", "320", "{x1} + {s1}", "zmm3", "zmm4"),
            row!("zmm22", "384", "{x1} + 2 * {s1}", "zmm5", "zmm6"),
            row!("zmm23", "448", "{x1} + {s3}", "zmm7", "zmm8"),
            row!("zmm24", "512", "{x2}", "zmm1", "zmm2"),
            row!("zmm25", "576", "{x2} + {s1}", "zmm3", "zmm4"),
            row!("zmm26", "640", "{x2} + 2 * {s1}", "zmm5", "zmm6"),
            row!("zmm27", "704", "{x2} + {s3}", "zmm7", "zmm8"),
            row!("zmm28", "768", "{x3}", "zmm1", "zmm2"),
            row!("zmm29", "832", "{x3} + {s1}", "zmm3", "zmm4"),
            row!("zmm30", "896", "{x3} + 2 * {s1}", "zmm5", "zmm6"),
            row!("zmm31", "960", "{x3} + {s3}", "zmm7", "zmm8"),
            product = in(reg) product,
            w = in(reg) w,
            x0 = in(reg) x,
            x1 = in(reg) x.add(4 * stride),
            x2 = in(reg) x.add(8 * stride),
            x3 = in(reg) x.add(12 * stride),
            s1 = in(reg) 4 * stride,
            s3 = in(reg) 12 * stride,
            inout("zmm16") sums[0],
            inout("zmm17") sums[1],
            inout("zmm18") sums[2],
            inout("zmm19") sums[3],
            inout("zmm20") sums[4],
            inout("zmm21") sums[5],
            inout("zmm22") sums[6],
            inout("zmm23") sums[7],
            inout("zmm24") sums[8],
            inout("zmm25") sums[9],
            inout("zmm26") sums[10],
            inout("zmm27") sums[11],
            inout("zmm28") sums[12],
            inout("zmm29") sums[13],
            inout("zmm30") sums[14],
            inout("zmm31") sums[15],
            out("zmm0") _,
            out("zmm1") _,
            out("zmm2") _,
            out("zmm3") _,
            out("zmm4") _,
            out("zmm5") _,
            out("zmm6") _,
            out("zmm7") _,
            out("zmm8") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// Adds biases to the sums of tokens: `sum ← fma(w, x, sum)`, with `w` and `x` as above.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn add_bias(
    sums: &mut [__m512; TILE_ROWS],
    w: *const f32,
    (x, stride): TokenNumbers,
) {
    macro_rules! row {
        ($sum:literal, $x:literal) => {
            concat!("vfmadd231ps ", $sum, ", zmm0, dword ptr [", $x, "]{{1to16}}")
        };
    }
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "vmovups zmm0, [{w}]",
            row!("zmm16", "{x0}"),
            row!("zmm17", "{x0} + {s1}"),
            row!("zmm18", "{x0} + 2 * {s1}"),
            row!("zmm19", "{x0} + {s3}"),
            row!("zmm20", "{x1}"),
            row!("zmm21", "{x1} + {s1}"),
            row!("zmm22", "{x1} + 2 * {s1}"),
            row!("zmm23", "{x1} + {s3}"),
            row!("zmm24", "{x2}"),
            row!("zmm25", "{x2} + {s1}"),
            row!("zmm26", "{x2} + 2 * {s1}"),
            row!("zmm27", "{x2} + {s3}"),
            row!("zmm28", "{x3}"),
            row!("zmm29", "{x3} + {s1}"),
            row!("zmm30", "{x3} + 2 * {s1}"),
            row!("zmm31", "{x3} + {s3}"),
            w = in(reg) w,
            x0 = in(reg) x,
            x1 = in(reg) x.add(4 * stride),
            x2 = in(reg) x.add(8 * stride),
            x3 = in(reg) x.add(12 * stride),
            s1 = in(reg) 4 * stride,
            s3 = in(reg) 12 * stride,
            inout("zmm16") sums[0],
            inout("zmm17") sums[1],
            inout("zmm18") sums[2],
            inout("zmm19") sums[3],
            inout("zmm20") sums[4],
            inout("zmm21") sums[5],
            inout("zmm22") sums[6],
            inout("zmm23") sums[7],
            inout("zmm24") sums[8],
            inout("zmm25") sums[9],
            inout("zmm26") sums[10],
            inout("zmm27") sums[11],
            inout("zmm28") sums[12],
            inout("zmm29") sums[13],
            inout("zmm30") sums[14],
            inout("zmm31") sums[15],
            out("zmm0") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}
