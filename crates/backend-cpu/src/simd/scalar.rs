//! Plain loops over sixteen numbers: the fallback, and what other instruction sets are tested
//! against. Compilers turn them into whatever the target always has.

use super::{LANES, Simd};

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

type V = [f32; LANES];

#[inline(always)]
fn each(mut f: impl FnMut(usize) -> f32) -> V {
    let mut out = [0.0; LANES];
    for (i, o) in out.iter_mut().enumerate() {
        *o = f(i);
    }
    out
}

impl Simd for Scalar {
    type V = V;
    type Ints = [i32; LANES];
    type Quads = [u32; LANES];
    // A vector is four 128-bit registers, of which there are 16, or 32 on aarch64.
    const TILE_ROWS: usize = if cfg!(target_arch = "aarch64") { 4 } else { 2 };
    const WIDE: bool = false;
    const INT_TILE_ROWS: usize = 2;
    const INT_TILE_PANELS: usize = 1;
    const DOT_IS_NARROW: bool = false;
    const WIDE_OFFSET: i32 = 0;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> V {
        // SAFETY: by the caller's promise.
        unsafe { p.cast::<V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> V {
        // SAFETY: by the caller's promise.
        let x = unsafe { p.cast::<[half::f16; LANES]>().read_unaligned() };
        each(|i| x[i].to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> V {
        // SAFETY: by the caller's promise.
        let x = unsafe { p.cast::<[half::bf16; LANES]>().read_unaligned() };
        each(|i| f32::from_bits(u32::from(x[i].to_bits()) << 16))
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: V) {
        // SAFETY: by the caller's promise.
        unsafe { p.cast::<V>().write_unaligned(v) }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        each(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        each(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        each(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        each(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn mul_add(self, a: V, b: V, c: V) -> V {
        // Without the instruction, `mul_add` would be a call per number.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            each(|i| a[i].mul_add(b[i], c[i]))
        } else {
            each(|i| a[i] * b[i] + c[i])
        }
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn round(self, a: V) -> V {
        // Adding and taking away 1.5·2²³ leaves no room for a fraction; `round` would be a call.
        const MAGIC: f32 = 12_582_912.0;
        each(|i| (a[i] + MAGIC) - MAGIC)
    }

    #[inline(always)]
    fn exp2_int(self, n: V) -> V {
        each(|i| f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn sum(self, a: V) -> f32 {
        let b: [f32; 8] = std::array::from_fn(|i| a[i] + a[i + 8]);
        let c: [f32; 4] = std::array::from_fn(|i| b[i] + b[i + 4]);
        (c[0] + c[2]) + (c[1] + c[3])
    }

    #[inline(always)]
    fn largest(self, a: V) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> V {
        // SAFETY: by the caller's promise.
        let x = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        each(|i| f32::from(x[i]))
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> V {
        // SAFETY: by the caller's promise.
        let x = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        each(|i| f32::from(x[i]))
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: V) {
        // SAFETY: by the caller's promise.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(v.map(|x| x as i8)) }
    }

    #[inline(always)]
    unsafe fn load_quads(self, p: *const u8) -> [u32; LANES] {
        // SAFETY: by the caller's promise.
        unsafe { p.cast::<[u32; LANES]>().read_unaligned() }.map(u32::from_le)
    }

    #[inline(always)]
    unsafe fn store_quads(self, p: *mut u8, q: [u32; LANES]) {
        // SAFETY: by the caller's promise.
        unsafe { p.cast::<[u32; LANES]>().write_unaligned(q.map(u32::to_le)) }
    }

    #[inline(always)]
    unsafe fn splat_quad(self, p: *const i8) -> [u32; LANES] {
        // SAFETY: by the caller's promise.
        [u32::from_le(unsafe { p.cast::<u32>().read_unaligned() }); LANES]
    }

    #[inline(always)]
    fn shift_right(self, q: [u32; LANES], n: u32) -> [u32; LANES] {
        q.map(|q| q >> n)
    }

    #[inline(always)]
    fn shift_left(self, q: [u32; LANES], n: u32) -> [u32; LANES] {
        q.map(|q| q << n)
    }

    #[inline(always)]
    fn and(self, q: [u32; LANES], mask: u32) -> [u32; LANES] {
        q.map(|q| q & mask)
    }

    #[inline(always)]
    fn or(self, a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        std::array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn quads_to_ints(self, q: [u32; LANES]) -> [i32; LANES] {
        q.map(u32::cast_signed)
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> [i32; LANES] {
        [x; LANES]
    }

    #[inline(always)]
    fn ints_to_floats(self, a: [i32; LANES]) -> V {
        each(|i| a[i] as f32)
    }

    #[inline(always)]
    fn dot<const CODES_ARE_WIDE: bool>(
        self,
        sum: [i32; LANES],
        codes: [u32; LANES],
        x: [u32; LANES],
    ) -> [i32; LANES] {
        let mut sums = sum;
        for ((sum, codes), x) in sums.iter_mut().zip(codes).zip(x) {
            for (code, x) in codes.to_le_bytes().into_iter().zip(x.to_le_bytes()) {
                *sum += i32::from(code) * i32::from(x.cast_signed());
            }
        }
        sums
    }
}
