//! Two 256-bit registers per vector.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T1, _mm_cvtsi32_si128, _mm_loadl_epi64, _mm_loadu_si128,
    _mm_packs_epi16, _mm_packs_epi32, _mm_prefetch, _mm_storeu_si128, _mm256_abs_epi8,
    _mm256_add_epi32, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32,
    _mm256_cvtph_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_dpbusd_avx_epi32,
    _mm256_extracti128_si256, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps,
    _mm256_or_si256, _mm256_round_ps, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_ps, _mm256_sign_epi8, _mm256_sll_epi32, _mm256_slli_epi32, _mm256_srl_epi32,
    _mm256_storeu_ps, _mm256_storeu_si256, _mm256_sub_ps, _mm256_xor_si256,
};

use super::{Kernel, Simd};

/// Proof of AVX2, FMA and F16C, and of AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>(());

/// Lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct Pair(__m256, __m256);

/// Integers of lanes 0 to 7 and 8 to 15.
#[derive(Clone, Copy)]
pub(crate) struct IntPair(__m256i, __m256i);

impl<const VNNI: bool> Avx2<VNNI> {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (!VNNI || is_x86_feature_detected!("avxvnni"));
        found.then_some(Avx2(()))
    }

    pub(crate) fn without_vnni(self) -> Avx2<false> {
        Avx2(())
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<const VNNI: bool, K: Kernel>(s: Avx2<VNNI>, kernel: K) -> K::Output {
            kernel.call(s)
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn run_vnni<const VNNI: bool, K: Kernel>(s: Avx2<VNNI>, kernel: K) -> K::Output {
            kernel.call(s)
        }
        // SAFETY: `self` exists, so the features were detected.
        unsafe { if VNNI { run_vnni(self, kernel) } else { run(self, kernel) } }
    }

    /// Eight lanes of [`Simd::dot`].
    #[inline(always)]
    fn dot_half<const WIDE: bool>(self, sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: `self` proves that the machine has the instructions.
        unsafe {
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sum, codes, x);
            }
            let pairs = if WIDE {
                // 128 taken off, the sign moved to `x`: 2·128·127 fits 16 bits, 2·255·127 does not.
                let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
                _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
            } else {
                _mm256_maddubs_epi16(codes, x)
            };
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}

// In all of these `self` proves that the machine has the instructions, and `Kernel` that they are
// inlined where they are enabled.
impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type V = Pair;
    type Ints = IntPair;
    type Quads = IntPair;
    const TILE_ROWS: usize = 6;
    const WIDE: bool = false;
    const INT_TILE_ROWS: usize = 4;
    const INT_TILE_PANELS: usize = 1;
    const DOT_IS_NARROW: bool = !VNNI;
    const WIDE_OFFSET: i32 = if VNNI { 0 } else { 128 };

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

    #[inline(always)]
    fn largest(self, a: Pair) -> f32 {
        let mut lanes = [0.0f32; 8];
        // SAFETY: see above; `lanes` has room for 8.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), _mm256_max_ps(a.0, a.1)) };
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> Pair {
        // SAFETY: see above, and by the caller's promise.
        let half = |p: *const u8| unsafe {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast::<__m128i>())))
        };
        Pair(half(p), half(p.wrapping_add(8)))
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Pair {
        // SAFETY: see above, and by the caller's promise.
        let half = |p: *const i8| unsafe {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast::<__m128i>())))
        };
        Pair(half(p), half(p.wrapping_add(8)))
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: Pair) {
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            let words = |v| {
                let ints = _mm256_cvtps_epi32(v);
                _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256::<1>(ints))
            };
            _mm_storeu_si128(p.cast::<__m128i>(), _mm_packs_epi16(words(v.0), words(v.1)));
        }
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: see above; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast::<i8>()) }
    }

    #[inline(always)]
    unsafe fn load_quads(self, p: *const u8) -> IntPair {
        let p = p.cast::<__m256i>();
        // SAFETY: see above, and by the caller's promise.
        unsafe { IntPair(_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))) }
    }

    #[inline(always)]
    unsafe fn store_quads(self, p: *mut u8, q: IntPair) {
        let p = p.cast::<__m256i>();
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            _mm256_storeu_si256(p, q.0);
            _mm256_storeu_si256(p.add(1), q.1);
        }
    }

    #[inline(always)]
    unsafe fn splat_quad(self, p: *const i8) -> IntPair {
        // SAFETY: see above, and by the caller's promise.
        let v = unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) };
        IntPair(v, v)
    }

    #[inline(always)]
    fn shift_right(self, q: IntPair, n: u32) -> IntPair {
        // SAFETY: see above.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            IntPair(_mm256_srl_epi32(q.0, n), _mm256_srl_epi32(q.1, n))
        }
    }

    #[inline(always)]
    fn shift_left(self, q: IntPair, n: u32) -> IntPair {
        // SAFETY: see above.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            IntPair(_mm256_sll_epi32(q.0, n), _mm256_sll_epi32(q.1, n))
        }
    }

    #[inline(always)]
    fn and(self, q: IntPair, mask: u32) -> IntPair {
        // SAFETY: see above.
        unsafe {
            let mask = _mm256_set1_epi32(mask as i32);
            IntPair(_mm256_and_si256(q.0, mask), _mm256_and_si256(q.1, mask))
        }
    }

    #[inline(always)]
    fn or(self, a: IntPair, b: IntPair) -> IntPair {
        // SAFETY: see above.
        unsafe { IntPair(_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1)) }
    }

    #[inline(always)]
    fn quads_to_ints(self, q: IntPair) -> IntPair {
        q
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> IntPair {
        // SAFETY: see above.
        let v = unsafe { _mm256_set1_epi32(x) };
        IntPair(v, v)
    }

    #[inline(always)]
    fn ints_to_floats(self, a: IntPair) -> Pair {
        // SAFETY: see above.
        unsafe { Pair(_mm256_cvtepi32_ps(a.0), _mm256_cvtepi32_ps(a.1)) }
    }

    #[inline(always)]
    fn dot<const CODES_ARE_WIDE: bool>(self, sum: IntPair, codes: IntPair, x: IntPair) -> IntPair {
        IntPair(
            self.dot_half::<CODES_ARE_WIDE>(sum.0, codes.0, x.0),
            self.dot_half::<CODES_ARE_WIDE>(sum.1, codes.1, x.1),
        )
    }
}
