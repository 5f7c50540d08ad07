//! Four 128-bit registers per vector.
//!
//! Dot products of bytes come in three levels; the intrinsics of the upper two are not stable, so
//! their instructions are written out. At [`I8MM`], tiles of two rows and more multiply 2 × 8 with
//! 8 × 2 codes at once.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, uint8x16_t, uint32x4_t, vaddq_f32, vaddq_s32, vandq_u32,
    vbslq_f32, vcgtq_f32, vcltq_f32, vcombine_s8, vcombine_s16, vcvt_f32_f16, vcvtnq_s32_f32,
    vcvtq_f32_s32, vcvtq_f32_u32, vdivq_f32, vdupq_n_f32, vdupq_n_s8, vdupq_n_s32, vdupq_n_u8,
    vdupq_n_u32, veorq_u8, vfmaq_f32, vget_high_s8, vget_high_s16, vget_high_u8, vget_high_u16,
    vget_low_s8, vget_low_s16, vget_low_u8, vget_low_u16, vgetq_lane_f32, vld1_s8, vld1_u16,
    vld1q_f32, vld1q_s8, vld1q_u8, vld1q_u32, vmaxq_f32, vmaxvq_f32, vmovl_s8, vmovl_s16, vmovl_u8,
    vmovl_u16, vmull_s8, vmulq_f32, vorrq_u32, vpadalq_s16, vpaddq_s16, vqmovn_s16, vqmovn_s32,
    vreinterpret_f16_u16, vreinterpretq_f32_s32, vreinterpretq_f32_u32, vreinterpretq_s8_u8,
    vreinterpretq_s8_u32, vreinterpretq_s32_u32, vreinterpretq_u8_u32, vrndnq_f32, vshlq_n_s32,
    vshlq_n_u32, vshlq_u32, vst1q_f32, vst1q_s8, vst1q_u32, vsubq_f32, vuzp1q_s32, vuzp2q_s32,
    vzip1q_s32, vzip1q_u32, vzip2q_s32, vzip2q_u32,
};
use std::arch::{asm, is_aarch64_feature_detected};

use super::{CHUNK, Kernel, Simd, dot_chunks};

/// Products by `smull`: every machine has them.
pub(crate) const PLAIN: u8 = 0;
/// Four products per lane by `sdot`, signed times signed.
pub(crate) const DOTPROD: u8 = 1;
/// Unsigned times signed by `usdot`, and 2 × 8 · 8 × 2 by `usmmla`.
pub(crate) const I8MM: u8 = 2;

/// Proof of NEON and of a level of dot products.
#[derive(Clone, Copy)]
pub(crate) struct Neon<const LEVEL: u8>(());

type V = [float32x4_t; 4];
type Ints = [int32x4_t; 4];
type Quads = [uint32x4_t; 4];

/// The same for each of four registers, with `$i` as their number.
macro_rules! each {
    ($i:ident => $e:expr) => {
        [
            { const $i: usize = 0; $e },
            { const $i: usize = 1; $e },
            { const $i: usize = 2; $e },
            { const $i: usize = 3; $e },
        ]
    };
}

impl<const LEVEL: u8> Neon<LEVEL> {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_aarch64_feature_detected!("neon")
            && (LEVEL < DOTPROD || is_aarch64_feature_detected!("dotprod"))
            && (LEVEL < I8MM || is_aarch64_feature_detected!("i8mm"));
        found.then_some(Neon(()))
    }

    pub(crate) fn plain(self) -> Neon<PLAIN> {
        Neon(())
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon")]
        fn run<const LEVEL: u8, K: Kernel>(s: Neon<LEVEL>, kernel: K) -> K::Output {
            kernel.call(s)
        }
        #[target_feature(enable = "neon,dotprod")]
        fn run_dotprod<const LEVEL: u8, K: Kernel>(s: Neon<LEVEL>, kernel: K) -> K::Output {
            kernel.call(s)
        }
        #[target_feature(enable = "neon,dotprod,i8mm")]
        fn run_i8mm<const LEVEL: u8, K: Kernel>(s: Neon<LEVEL>, kernel: K) -> K::Output {
            kernel.call(s)
        }
        // SAFETY: `self` exists, so the features were detected.
        unsafe {
            match LEVEL {
                PLAIN => run(self, kernel),
                DOTPROD => run_dotprod(self, kernel),
                _ => run_i8mm(self, kernel),
            }
        }
    }

    /// Codes as the dot product of this level reads them.
    #[inline(always)]
    fn codes<const WIDE: bool>(self, codes: uint32x4_t) -> uint8x16_t {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let codes = vreinterpretq_u8_u32(codes);
            if WIDE && LEVEL != I8MM { veorq_u8(codes, vdupq_n_u8(128)) } else { codes }
        }
    }

    /// Four lanes of [`Simd::dot`].
    #[inline(always)]
    fn dot_quarter(self, sum: int32x4_t, codes: uint8x16_t, x: uint32x4_t) -> int32x4_t {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            let x = vreinterpretq_s8_u32(x);
            match LEVEL {
                I8MM => usdot(sum, codes, x),
                DOTPROD => sdot(sum, vreinterpretq_s8_u8(codes), x),
                _ => {
                    // Two products fit 16 bits: 2·128·127.
                    let codes = vreinterpretq_s8_u8(codes);
                    let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
                    let high = vmull_s8(vget_high_s8(codes), vget_high_s8(x));
                    vpadalq_s16(sum, vpaddq_s16(low, high))
                }
            }
        }
    }

    /// Four chunks times four quads of each row, which are picked out of one register.
    ///
    /// # Safety
    /// 4 chunks can be read at `codes`, and 16 bytes at each of `H` rows of `x`, `stride` apart.
    #[inline(always)]
    unsafe fn dot_four_chunks<const WIDE: bool, const H: usize>(
        self,
        ints: &mut [Ints; H],
        codes: *const u8,
        x: *const i8,
        stride: usize,
    ) {
        // SAFETY: by the caller's promise; `self` proves that the machine has the instructions.
        unsafe {
            let mut quads = [vld1q_s8(x); H];
            for (r, quads) in quads.iter_mut().enumerate().skip(1) {
                *quads = vld1q_s8(x.add(r * stride));
            }
            macro_rules! chunk {
                ($c:literal) => {
                    let w = self.load_quads(codes.add($c * CHUNK));
                    let w = each!(I => self.codes::<WIDE>(w[I]));
                    for (ints, quads) in ints.iter_mut().zip(quads) {
                        *ints = if LEVEL == I8MM {
                            each!(I => usdot_lane::<$c>(ints[I], w[I], quads))
                        } else {
                            each!(I => sdot_lane::<$c>(ints[I], vreinterpretq_s8_u8(w[I]), quads))
                        };
                    }
                };
            }
            chunk!(0);
            chunk!(1);
            chunk!(2);
            chunk!(3);
        }
    }

    /// Two rows of `x` at a time times `n` chunks, two chunks at a time.
    ///
    /// A register of a chunk is 4 × 4 codes; those of two chunks, zipped, are two of 2 × 8. The
    /// sums of rows `a` and `b` stand zipped, too: `a₀ b₀ a₁ b₁` and `a₂ b₂ a₃ b₃`.
    ///
    /// # Safety
    /// `n` chunks can be read at `codes`, and `4·n` bytes at each of `H` rows of `x`, `stride`
    /// apart; `H` and `n` are even.
    #[inline(always)]
    unsafe fn multiply_pairs<const H: usize>(
        self,
        ints: &mut [Ints; H],
        codes: *const u8,
        x: *const i8,
        stride: usize,
        n: usize,
    ) {
        // SAFETY: by the caller's promise; `self` proves that the machine has the instructions.
        unsafe {
            for pair in ints.as_chunks_mut::<2>().0 {
                let [a, b] = *pair;
                pair[0] = each!(I => vzip1q_s32(a[I], b[I]));
                pair[1] = each!(I => vzip2q_s32(a[I], b[I]));
            }
            for c in (0..n).step_by(2) {
                // Of pairs of rows, so that half of them are never made.
                let mut pairs = [vdupq_n_s8(0); H];
                for (p, pair) in pairs.iter_mut().take(H / 2).enumerate() {
                    let x = x.add(2 * p * stride + c * 4);
                    *pair = vcombine_s8(vld1_s8(x), vld1_s8(x.add(stride)));
                }
                for i in 0..4 {
                    let w = vld1q_u32(codes.add(c * CHUNK + i * 16).cast());
                    let next = vld1q_u32(codes.add((c + 1) * CHUNK + i * 16).cast());
                    let low = vreinterpretq_u8_u32(vzip1q_u32(w, next));
                    let high = vreinterpretq_u8_u32(vzip2q_u32(w, next));
                    for (ints, x) in ints.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                        ints[0][i] = usmmla(ints[0][i], low, x);
                        ints[1][i] = usmmla(ints[1][i], high, x);
                    }
                }
            }
            for pair in ints.as_chunks_mut::<2>().0 {
                let [low, high] = *pair;
                pair[0] = each!(I => vuzp1q_s32(low[I], high[I]));
                pair[1] = each!(I => vuzp2q_s32(low[I], high[I]));
            }
        }
    }
}

// In all of these `self` proves that the machine has the instructions, and `Kernel` that those
// beyond plain NEON are inlined where they are enabled.
impl<const LEVEL: u8> Simd for Neon<LEVEL> {
    type V = V;
    type Ints = Ints;
    type Quads = Quads;
    // Of 32 registers a row's sums take four, and the weights four.
    const TILE_ROWS: usize = 6;
    const WIDE: bool = false;
    const INT_TILE_ROWS: usize = if LEVEL == I8MM { 6 } else { 4 };
    const INT_TILE_PANELS: usize = 1;
    const DOT_IS_NARROW: bool = LEVEL != I8MM;
    const WIDE_OFFSET: i32 = if LEVEL == I8MM { 0 } else { 128 };

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: see above.
        [unsafe { vdupq_n_f32(x) }; 4]
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        // SAFETY: see above, and by the caller's promise.
        unsafe { each!(I => vld1q_f32(p.add(I * 4))) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> V {
        let p = p.cast::<u16>();
        // SAFETY: see above, and by the caller's promise.
        unsafe { each!(I => vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(I * 4))))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> V {
        let p = p.cast::<u16>();
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            let wide = each!(I => vmovl_u16(vld1_u16(p.add(I * 4))));
            each!(I => vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide[I])))
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        // SAFETY: see above, and by the caller's promise.
        unsafe { each!(I => vst1q_f32(p.add(I * 4), v[I])) };
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vaddq_f32(a[I], b[I])) }
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vsubq_f32(a[I], b[I])) }
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vmulq_f32(a[I], b[I])) }
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vdivq_f32(a[I], b[I])) }
    }

    #[inline(always)]
    fn mul_add(self, a: V, b: V, c: V) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vfmaq_f32(c[I], a[I], b[I])) }
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        // `fmin` would return what is not a number, wherever it stands.
        // SAFETY: see above.
        unsafe { each!(I => vbslq_f32(vcltq_f32(a[I], b[I]), a[I], b[I])) }
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vbslq_f32(vcgtq_f32(a[I], b[I]), a[I], b[I])) }
    }

    #[inline(always)]
    fn round(self, a: V) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vrndnq_f32(a[I])) }
    }

    #[inline(always)]
    fn exp2_int(self, n: V) -> V {
        // SAFETY: see above.
        unsafe {
            let biased = each!(I => vaddq_s32(vcvtnq_s32_f32(n[I]), vdupq_n_s32(127)));
            each!(I => vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased[I])))
        }
    }

    #[inline(always)]
    fn sum(self, a: V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let c = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            let c = [
                vgetq_lane_f32::<0>(c),
                vgetq_lane_f32::<1>(c),
                vgetq_lane_f32::<2>(c),
                vgetq_lane_f32::<3>(c),
            ];
            (c[0] + c[2]) + (c[1] + c[3])
        }
    }

    #[inline(always)]
    fn largest(self, a: V) -> f32 {
        // SAFETY: see above.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))) }
    }

    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> V {
        // SAFETY: see above, and by the caller's promise.
        let words = unsafe {
            let bytes = vld1q_u8(p);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)]
        };
        // SAFETY: see above, and by the caller's promise.
        unsafe { each!(I => vcvtq_f32_u32(vmovl_u16(words[I]))) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> V {
        // SAFETY: see above, and by the caller's promise.
        let words = unsafe {
            let bytes = vld1q_s8(p);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)]
        };
        // SAFETY: see above, and by the caller's promise.
        unsafe { each!(I => vcvtq_f32_s32(vmovl_s16(words[I]))) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: V) {
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            let words = each!(I => vqmovn_s32(vcvtnq_s32_f32(v[I])));
            let low = vqmovn_s16(vcombine_s16(words[0], words[1]));
            let high = vqmovn_s16(vcombine_s16(words[2], words[3]));
            vst1q_s8(p, vcombine_s8(low, high));
        }
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a prefetch never faults and changes nothing.
        unsafe {
            asm!("prfm pldl2keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn load_quads(self, p: *const u8) -> Quads {
        // SAFETY: see above, and by the caller's promise.
        unsafe { each!(I => vld1q_u32(p.add(I * 16).cast())) }
    }

    #[inline(always)]
    unsafe fn store_quads(self, p: *mut u8, q: Quads) {
        // SAFETY: see above, and by the caller's promise.
        unsafe { each!(I => vst1q_u32(p.add(I * 16).cast(), q[I])) };
    }

    #[inline(always)]
    unsafe fn splat_quad(self, p: *const i8) -> Quads {
        // SAFETY: see above, and by the caller's promise.
        [unsafe { vdupq_n_u32(p.cast::<u32>().read_unaligned()) }; 4]
    }

    #[inline(always)]
    fn shift_right(self, q: Quads, n: u32) -> Quads {
        // SAFETY: see above.
        unsafe { each!(I => vshlq_u32(q[I], vdupq_n_s32(-n.cast_signed()))) }
    }

    #[inline(always)]
    fn shift_left(self, q: Quads, n: u32) -> Quads {
        // SAFETY: see above.
        unsafe { each!(I => vshlq_u32(q[I], vdupq_n_s32(n.cast_signed()))) }
    }

    #[inline(always)]
    fn and(self, q: Quads, mask: u32) -> Quads {
        // SAFETY: see above.
        unsafe { each!(I => vandq_u32(q[I], vdupq_n_u32(mask))) }
    }

    #[inline(always)]
    fn or(self, a: Quads, b: Quads) -> Quads {
        // SAFETY: see above.
        unsafe { each!(I => vorrq_u32(a[I], b[I])) }
    }

    #[inline(always)]
    fn quads_to_ints(self, q: Quads) -> Ints {
        // SAFETY: see above.
        unsafe { each!(I => vreinterpretq_s32_u32(q[I])) }
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> Ints {
        // SAFETY: see above.
        [unsafe { vdupq_n_s32(x) }; 4]
    }

    #[inline(always)]
    fn ints_to_floats(self, a: Ints) -> V {
        // SAFETY: see above.
        unsafe { each!(I => vcvtq_f32_s32(a[I])) }
    }

    #[inline(always)]
    fn dot<const CODES_ARE_WIDE: bool>(self, sum: Ints, codes: Quads, x: Quads) -> Ints {
        each!(I => self.dot_quarter(sum[I], self.codes::<CODES_ARE_WIDE>(codes[I]), x[I]))
    }

    #[inline(always)]
    unsafe fn dot_chunks<const WIDE: bool, const H: usize, const W: usize>(
        self,
        ints: &mut [[Ints; W]; H],
        codes: [*const u8; W],
        (x, stride): (*const i8, usize),
        (first, n): (usize, usize),
    ) {
        if LEVEL == PLAIN || !n.is_multiple_of(4) {
            // SAFETY: by the caller's promise.
            return unsafe {
                dot_chunks::<_, WIDE, H, W>(self, ints, codes, (x, stride), (first, n))
            };
        }
        for (j, codes) in codes.into_iter().enumerate() {
            let mut column = ints.map(|row| row[j]);
            // SAFETY: by the caller's promise.
            unsafe {
                let (codes, x) = (codes.add(first * CHUNK), x.add(first * 4));
                if LEVEL == I8MM && H.is_multiple_of(2) {
                    self.multiply_pairs(&mut column, codes, x, stride, n);
                } else {
                    for c in (0..n).step_by(4) {
                        let (codes, x) = (codes.add(c * CHUNK), x.add(c * 4));
                        self.dot_four_chunks::<WIDE, H>(&mut column, codes, x, stride);
                    }
                }
            }
            for (row, sum) in ints.iter_mut().zip(column) {
                row[j] = sum;
            }
        }
    }
}

/// `sum + Σ a·b` over the four bytes of each lane.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: it touches nothing but its registers, and the feature is enabled.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) out, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

/// As [`sdot`], with lane `I` of `b` for all.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot_lane<const I: usize>(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: it touches nothing but its registers, and the feature is enabled.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]",
            inout(vreg) out, in(vreg) a, in(vreg) b, const I,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

/// `sum + Σ a·b` over the four bytes of each lane.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usdot(sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: it touches nothing but its registers, and the feature is enabled.
    unsafe {
        asm!(
            "usdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) out, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

/// As [`usdot`], with lane `I` of `b` for all.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usdot_lane<const I: usize>(sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: it touches nothing but its registers, and the feature is enabled.
    unsafe {
        asm!(
            "usdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]",
            inout(vreg) out, in(vreg) a, in(vreg) b, const I,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}

/// `sum + a·bᵀ` with `a` and `b` of two rows of eight bytes, and sums of two rows of two.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn usmmla(sum: int32x4_t, a: uint8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: it touches nothing but its registers, and the feature is enabled.
    unsafe {
        asm!(
            "usmmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) out, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    out
}
