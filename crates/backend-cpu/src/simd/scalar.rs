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
    // A vector is four 128-bit registers, of which there are 16, or 32 on aarch64.
    const TILE_ROWS: usize = if cfg!(target_arch = "aarch64") { 4 } else { 2 };
    const WIDE: bool = false;

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
}
