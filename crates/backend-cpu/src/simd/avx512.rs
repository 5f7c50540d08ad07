//! One 512-bit register per vector.

use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512i, _MM_HINT_T1, _mm_cvtsi32_si128, _mm_loadu_si128,
    _mm_prefetch, _mm_storeu_si128, _mm256_loadu_si256, _mm512_add_epi32, _mm512_add_ps,
    _mm512_and_si512, _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi8,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtepu16_epi32, _mm512_cvtph_ps,
    _mm512_cvtps_epi32, _mm512_div_ps, _mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maddubs_epi16, _mm512_max_ps, _mm512_min_ps,
    _mm512_mul_ps, _mm512_or_si512, _mm512_reduce_add_ps, _mm512_reduce_max_ps,
    _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_sll_epi32, _mm512_slli_epi16, _mm512_slli_epi32, _mm512_srai_epi16, _mm512_srl_epi32,
    _mm512_srli_epi16, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_ps,
};

use super::{Kernel, Simd};

/// Proof of AVX-512 F, BW and VL, and of VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const VNNI: bool>(());

impl<const VNNI: bool> Avx512<VNNI> {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
            && (!VNNI || is_x86_feature_detected!("avx512vnni"));
        found.then_some(Avx512(()))
    }

    pub(crate) fn without_vnni(self) -> Avx512<false> {
        Avx512(())
    }

    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
        fn run<const VNNI: bool, K: Kernel>(s: Avx512<VNNI>, kernel: K) -> K::Output {
            kernel.call(s)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,avx512vnni")]
        fn run_vnni<const VNNI: bool, K: Kernel>(s: Avx512<VNNI>, kernel: K) -> K::Output {
            kernel.call(s)
        }
        // SAFETY: `self` exists, so the features were detected.
        unsafe { if VNNI { run_vnni(self, kernel) } else { run(self, kernel) } }
    }
}

/// Proof of dot products of pairs of `bf16`.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Dot(());

impl Bf16Dot {
    pub(crate) fn detect() -> Option<Self> {
        let found = Avx512::<true>::detect().is_some() && is_x86_feature_detected!("avx512bf16");
        found.then_some(Bf16Dot(()))
    }

    /// Runs work with the instructions.
    #[inline]
    pub(crate) fn run<W: Bf16Work>(self, work: W) {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,avx512bf16")]
        fn run<W: Bf16Work>(work: W) {
            // SAFETY: the features are on.
            unsafe { work.call() }
        }
        // SAFETY: `self` exists, so the features were detected.
        unsafe { run(work) }
    }
}

/// Work with pairs of `bf16`. `call` must be `#[inline(always)]`, and so must everything in it that
/// touches vectors.
pub(crate) trait Bf16Work {
    /// The work.
    ///
    /// # Safety
    /// The machine has what [`Bf16Dot`] proves.
    unsafe fn call(self);
}

// In all of these `self` proves that the machine has the instructions, and `Kernel` that they are
// inlined where they are enabled.
impl<const VNNI: bool> Simd for Avx512<VNNI> {
    type V = __m512;
    type Ints = __m512i;
    type Quads = __m512i;
    const TILE_ROWS: usize = 12;
    const WIDE: bool = true;
    const INT_TILE_ROWS: usize = 6;
    const INT_TILE_PANELS: usize = 2;
    const DOT_IS_NARROW: bool = !VNNI;
    const WIDE_OFFSET: i32 = 0;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> __m512 {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast::<__m256i>())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> __m512 {
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast::<__m256i>()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: __m512) {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_roundscale_ps::<0>(a) }
    }

    #[inline(always)]
    fn exp2_int(self, n: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_scalef_ps(_mm512_set1_ps(1.0), n) }
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(a) }
    }

    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(a) }
    }

    #[inline(always)]
    unsafe fn load_u8(self, p: *const u8) -> __m512 {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast::<__m128i>()))) }
    }

    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> __m512 {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast::<__m128i>()))) }
    }

    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, v: __m512) {
        // SAFETY: see above, and by the caller's promise.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v));
            _mm_storeu_si128(p.cast::<__m128i>(), bytes);
        }
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: see above; a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast::<i8>()) }
    }

    #[inline(always)]
    unsafe fn load_quads(self, p: *const u8) -> __m512i {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_loadu_si512(p.cast::<__m512i>()) }
    }

    #[inline(always)]
    unsafe fn store_quads(self, p: *mut u8, q: __m512i) {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_storeu_si512(p.cast::<__m512i>(), q) }
    }

    #[inline(always)]
    unsafe fn splat_quad(self, p: *const i8) -> __m512i {
        // SAFETY: see above, and by the caller's promise.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    fn shift_right(self, q: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srl_epi32(q, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn shift_left(self, q: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sll_epi32(q, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    fn and(self, q: __m512i, mask: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(q, _mm512_set1_epi32(mask as i32)) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn quads_to_ints(self, q: __m512i) -> __m512i {
        q
    }

    #[inline(always)]
    fn splat_int(self, x: i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn ints_to_floats(self, a: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(a) }
    }

    #[inline(always)]
    fn dot<const CODES_ARE_WIDE: bool>(self, sum: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        // SAFETY: see above; VNNI is there if `VNNI`.
        unsafe {
            if VNNI {
                return _mm512_dpbusd_epi32(sum, codes, x);
            }
            if !CODES_ARE_WIDE {
                // 2·127·127 fits 16 bits.
                let pairs = _mm512_maddubs_epi16(codes, x);
                return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
            }
            let even = _mm512_madd_epi16(
                _mm512_and_si512(codes, _mm512_set1_epi16(0xff)),
                _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x)),
            );
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(codes), _mm512_srai_epi16::<8>(x));
            _mm512_add_epi32(sum, _mm512_add_epi32(even, odd))
        }
    }
}
