//! Two 256-bit registers per vector.

use std::arch::x86_64::{
    __m128i, __m256, _mm_loadu_si128, _mm256_add_epi32, _mm256_add_ps, _mm256_castsi256_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_fmadd_ps,
    _mm256_loadu_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_round_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_sub_ps,
};

use super::{Kernel, Simd};

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Pair(__m256, __m256);

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
            kernel.call(s)
        }
        // SAFETY: `self` exists, so the features were detected.
        unsafe { run(self, kernel) }
    }
}

// In all of these `self` proves that the machine has the instructions, and `Kernel` that they are
// inlined where they are enabled.
impl Simd for Avx2 {
    type V = Pair;
    const TILE_ROWS: usize = 6;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Pair {
        // SAFETY: see above.
        let v = unsafe { _mm256_set1_ps(x) };
        Pair(v, v)
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Pair {
        // SAFETY: see above, and by the caller's promise.
        unsafe { Pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> Pair {
        let p = p.cast::<__m128i>();
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            let (low, high) = (_mm_loadu_si128(p), _mm_loadu_si128(p.add(1)));
            Pair(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> Pair {
        let p = p.cast::<__m128i>();
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            let low = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)));
            let high = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(1))));
            Pair(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Pair) {
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }

    #[inline(always)]
    fn add(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn sub(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn mul(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn div(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn mul_add(self, a: Pair, b: Pair, c: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1)) }
    }

    #[inline(always)]
    fn min(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn max(self, a: Pair, b: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    fn round(self, a: Pair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_round_ps::<8>(a.0), _mm256_round_ps::<8>(a.1)) }
    }

    #[inline(always)]
    fn exp2_int(self, n: Pair) -> Pair {
        // SAFETY: see above.
        let one = |n| unsafe {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
        Pair(one(n.0), one(n.1))
    }

    #[inline(always)]
    fn sum(self, a: Pair) -> f32 {
        let mut lanes = [0.0f32; 8];
        // SAFETY: see above; `lanes` has room for 8.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_add_ps(a.0, a.1)) };
        let c: [f32; 4] = std::array::from_fn(|i| lanes[i] + lanes[i + 4]);
        (c[0] + c[2]) + (c[1] + c[3])
    }
}
