//! Sixteen `f32` lanes on every instruction set.
//!
//! Kernels are written once, against [`Simd`], and compiled once per instruction set by
//! [`Isa::run`], which is the only way into code with target features. A value of a `Simd` type is
//! the proof that the machine has the instructions: it comes only from detection.
#![allow(unsafe_code)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use std::fmt;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{Bf16Dot, Bf16Work};
pub(crate) use math::{exp, exp2_of_negative, gelu_tanh, tanh, times_sigmoid};

/// Lanes of one vector.
pub(crate) const LANES: usize = 16;
/// Bytes of a vector of four bytes each.
const CHUNK: usize = 4 * LANES;

/// An instruction set that was found on this machine.
#[derive(Clone, Copy)]
pub(crate) enum Isa {
    /// What the compiler makes of plain loops.
    Scalar(scalar::Scalar),
    /// AVX2, FMA and F16C: two registers per vector.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2<false>),
    /// AVX2 with 256-bit integer dot products.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx2::Avx2<true>),
    /// AVX-512 F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512<false>),
    /// AVX-512 with 512-bit integer dot products.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(avx512::Avx512<true>),
    /// The same with dot products of pairs of `bf16`.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(avx512::Avx512<true>, Bf16Dot),
    /// The same with products of tiles of bytes.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx(avx512::Avx512<true>, Bf16Dot, amx::Tiles),
    /// NEON: four registers per vector.
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<{ neon::PLAIN }>),
    /// NEON with dot products of signed bytes.
    #[cfg(target_arch = "aarch64")]
    Dotprod(neon::Neon<{ neon::DOTPROD }>),
    /// NEON with products of small matrices of bytes.
    #[cfg(target_arch = "aarch64")]
    I8mm(neon::Neon<{ neon::I8MM }>),
}

/// Work that is compiled for each instruction set. `call` must be `#[inline(always)]`, and so must
/// everything in it that touches vectors.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The work.
    fn call<S: Simd>(self, s: S) -> Self::Output;
}

/// Vectors of [`LANES`] numbers: `f32`, `i32`, or four bytes each.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// The vector.
    type V: Copy;
    /// `i32` lanes.
    type Ints: Copy;
    /// Lanes of four bytes.
    type Quads: Copy;
    /// Rows of the tallest tile whose sums stay in registers, two vectors wide if `WIDE`.
    const TILE_ROWS: usize;
    /// Whether a tile of `TILE_ROWS` may be two vectors wide.
    const WIDE: bool;
    /// Rows of the tallest tile of integer products.
    const INT_TILE_ROWS: usize;
    /// Panels of the widest tile of integer products, 1 or 2.
    const INT_TILE_PANELS: usize;
    /// Whether [`Simd::dot`] must know if codes may be larger than 127.
    const DOT_IS_NARROW: bool;
    /// What [`Simd::dot`] takes off each code that may be larger than 127.
    const WIDE_OFFSET: i32;

    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// 16 numbers can be read at `p`.
    unsafe fn load(self, p: *const f32) -> Self::V;
    /// # Safety
    /// 16 numbers can be read at `p`.
    unsafe fn load_f16(self, p: *const half::f16) -> Self::V;
    /// # Safety
    /// 16 numbers can be read at `p`.
    unsafe fn load_bf16(self, p: *const half::bf16) -> Self::V;
    /// # Safety
    /// 16 numbers can be written at `p`.
    unsafe fn store(self, p: *mut f32, v: Self::V);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a·b + c`, rounded once where the machine can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller; `b` if either is not a number.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger; `b` if either is not a number.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^n` for integral `n` in −126 ..= 127.
    fn exp2_int(self, n: Self::V) -> Self::V;
    /// The sum of all lanes, in an order that depends on nothing.
    fn sum(self, a: Self::V) -> f32;
    /// The largest lane; any of them if one is not a number.
    fn largest(self, a: Self::V) -> f32;

    /// # Safety
    /// 16 bytes can be read at `p`.
    unsafe fn load_u8(self, p: *const u8) -> Self::V;
    /// # Safety
    /// 16 bytes can be read at `p`.
    unsafe fn load_i8(self, p: *const i8) -> Self::V;
    /// Writes integral lanes of −128 ..= 127; what is not a number becomes anything.
    ///
    /// # Safety
    /// 16 bytes can be written at `p`.
    unsafe fn store_i8(self, p: *mut i8, v: Self::V);

    /// Asks for a cache line to be brought to the second-level cache; any address will do.
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
    /// # Safety
    /// 64 bytes can be read at `p`.
    unsafe fn load_quads(self, p: *const u8) -> Self::Quads;
    /// # Safety
    /// 64 bytes can be written at `p`.
    unsafe fn store_quads(self, p: *mut u8, q: Self::Quads);
    /// The same four bytes in all lanes.
    ///
    /// # Safety
    /// 4 bytes can be read at `p`.
    unsafe fn splat_quad(self, p: *const i8) -> Self::Quads;
    /// Shifts each lane as one number of 32 bits.
    fn shift_right(self, q: Self::Quads, n: u32) -> Self::Quads;
    /// Shifts each lane as one number of 32 bits.
    fn shift_left(self, q: Self::Quads, n: u32) -> Self::Quads;
    /// Keeps these bits of each lane.
    fn and(self, q: Self::Quads, mask: u32) -> Self::Quads;
    fn or(self, a: Self::Quads, b: Self::Quads) -> Self::Quads;
    /// Lanes of four bytes as numbers.
    fn quads_to_ints(self, q: Self::Quads) -> Self::Ints;
    fn splat_int(self, x: i32) -> Self::Ints;
    fn ints_to_floats(self, a: Self::Ints) -> Self::V;
    /// `sum + Σ codes·x` over the four bytes of each lane; codes are unsigned, `x` is signed and
    /// not −128. If `CODES_ARE_WIDE`, codes may be larger than 127, and [`Simd::WIDE_OFFSET`] is
    /// taken off each.
    fn dot<const CODES_ARE_WIDE: bool>(
        self,
        sum: Self::Ints,
        codes: Self::Quads,
        x: Self::Quads,
    ) -> Self::Ints;
    /// What [`Simd::dot`] makes of chunks `first .. first + n` of `W` panels and as many quads of
    /// `H` rows, added to a tile's sums. Chunks are 64 bytes, quads 4, one after the other; rows
    /// are `x.1` bytes apart.
    ///
    /// # Safety
    /// Those chunks can be read at each of `codes`, and those quads at each row of `x`.
    #[inline(always)]
    unsafe fn dot_chunks<const WIDE: bool, const H: usize, const W: usize>(
        self,
        ints: &mut [[Self::Ints; W]; H],
        codes: [*const u8; W],
        x: (*const i8, usize),
        (first, n): (usize, usize),
    ) {
        // SAFETY: by the caller's promise.
        unsafe { dot_chunks::<_, WIDE, H, W>(self, ints, codes, x, (first, n)) }
    }
}

/// [`Simd::dot_chunks`], chunk by chunk.
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn dot_chunks<S: Simd, const WIDE: bool, const H: usize, const W: usize>(
    s: S,
    ints: &mut [[S::Ints; W]; H],
    codes: [*const u8; W],
    (x, stride): (*const i8, usize),
    (first, n): (usize, usize),
) {
    for c in 0..n {
        let c = first + c;
        // SAFETY: by the caller's promise.
        unsafe {
            let mut w = [s.load_quads(codes[0].add(c * CHUNK)); W];
            for j in 1..W {
                w[j] = s.load_quads(codes[j].add(c * CHUNK));
            }
            for (r, ints) in ints.iter_mut().enumerate() {
                let x = s.splat_quad(x.add(r * stride + c * 4));
                for j in 0..W {
                    ints[j] = s.dot::<WIDE>(ints[j], w[j], x);
                }
            }
        }
    }
}

impl Isa {
    /// The widest set of this machine, or the one that `LAPIDARY_CPU_ISA` names.
    pub(crate) fn choose() -> Result<Self, String> {
        match std::env::var("LAPIDARY_CPU_ISA") {
            Ok(name) => Self::named(&name),
            Err(_) => Ok(*Self::all().last().expect("scalar is everywhere")),
        }
    }

    /// One of the machine's sets by name.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        // Tiles are tried only for who asks for them: to name another is the way around a trial.
        if let Some(isa) = Self::without_tiles().into_iter().find(|isa| isa.name() == name) {
            return Ok(isa);
        }
        let all = Self::all();
        all.iter().find(|isa| isa.name() == name).copied().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|isa| isa.name()).collect();
            format!("LAPIDARY_CPU_ISA is `{name}`, this machine has {}", known.join(", "))
        })
    }

    /// Every set of this machine, narrowest first.
    pub(crate) fn all() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut all = Self::without_tiles();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if let Some(Isa::Avx512Bf16(s, dot)) = all.last().copied()
            && let Some(tiles) = amx::Tiles::detect()
        {
            all.push(Isa::Amx(s, dot, tiles));
        }
        all
    }

    fn without_tiles() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut all = vec![Isa::Scalar(scalar::Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx2::Avx2::detect().map(Isa::Avx2));
            all.extend(avx2::Avx2::detect().map(Isa::AvxVnni));
            all.extend(avx512::Avx512::detect().map(Isa::Avx512));
            all.extend(avx512::Avx512::detect().map(Isa::Avx512Vnni));
            let both = avx512::Avx512::detect().zip(Bf16Dot::detect());
            all.extend(both.map(|(s, dot)| Isa::Avx512Bf16(s, dot)));
        }
        #[cfg(target_arch = "aarch64")]
        {
            all.extend(neon::Neon::detect().map(Isa::Neon));
            all.extend(neon::Neon::detect().map(Isa::Dotprod));
            all.extend(neon::Neon::detect().map(Isa::I8mm));
        }
        all
    }

    /// As in `LAPIDARY_CPU_ISA`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Isa::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni(_) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(_) => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16(..) => "avx512bf16",
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx(..) => "amx",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(_) => "neon",
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod(_) => "dotprod",
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm(_) => "i8mm",
        }
    }

    /// Dot products of pairs of `bf16`, if this set has them.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn bf16_dot(self) -> Option<Bf16Dot> {
        match self {
            Isa::Avx512Bf16(_, dot) => Some(dot),
            #[cfg(target_os = "linux")]
            Isa::Amx(_, dot, _) => Some(dot),
            _ => None,
        }
    }

    /// Products of tiles of bytes, if this set has them.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    pub(crate) fn tiles(self) -> Option<(Avx512<true>, amx::Tiles)> {
        match self {
            Isa::Amx(s, _, tiles) => Some((s, tiles)),
            _ => None,
        }
    }

    /// [`Simd::WIDE_OFFSET`] of this set.
    pub(crate) fn wide_offset(self) -> i32 {
        struct WideOffset;
        impl Kernel for WideOffset {
            type Output = i32;
            #[inline(always)]
            fn call<S: Simd>(self, _: S) -> i32 {
                S::WIDE_OFFSET
            }
        }
        self.run_integers(WideOffset)
    }

    /// Runs a kernel of floats with this set's instructions. Sets that differ only in integer dot
    /// products share its code.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni(s) => s.without_vnni().run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(s) | Isa::Avx512Bf16(s, _) => s.without_vnni().run(kernel),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx(s, ..) => s.without_vnni().run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod(s) => s.plain().run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm(s) => s.plain().run(kernel),
            _ => self.run_integers(kernel),
        }
    }

    /// Runs a kernel that calls [`Simd::dot`].
    #[inline]
    pub(crate) fn run_integers<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Scalar(s) => kernel.call(s),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni(s) | Isa::Avx512Bf16(s, _) => s.run(kernel),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Isa::Amx(s, ..) => s.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(s) => s.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod(s) => s.run(kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm(s) => s.run(kernel),
        }
    }
}

/// Up to 16 numbers as a vector, zeros after them.
#[inline(always)]
pub(crate) fn load<S: Simd>(s: S, x: &[f32]) -> S::V {
    if x.len() >= LANES {
        // SAFETY: there are 16.
        return unsafe { s.load(x.as_ptr()) };
    }
    let mut lanes = [0.0; LANES];
    lanes[..x.len()].copy_from_slice(x);
    // SAFETY: there are 16.
    unsafe { s.load(lanes.as_ptr()) }
}

/// Writes as many lanes as `out` has room for.
#[inline(always)]
pub(crate) fn store<S: Simd>(s: S, out: &mut [f32], v: S::V) {
    if out.len() >= LANES {
        // SAFETY: there is room for 16.
        return unsafe { s.store(out.as_mut_ptr(), v) };
    }
    let mut lanes = [0.0; LANES];
    // SAFETY: there is room for 16.
    unsafe { s.store(lanes.as_mut_ptr(), v) };
    out.copy_from_slice(&lanes[..out.len()]);
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;
