//! Sixteen `f32` lanes on every instruction set.
//!
//! Kernels are written once, against [`Simd`], and compiled once per instruction set by
//! [`Isa::run`], which is the only way into code with target features. A value of a `Simd` type is
//! the proof that the machine has the instructions: it comes only from detection.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
mod scalar;

use std::fmt;

pub(crate) use math::{exp, gelu_tanh, tanh};

/// Lanes of one vector.
pub(crate) const LANES: usize = 16;

/// An instruction set that was found on this machine.
#[derive(Clone, Copy)]
pub(crate) enum Isa {
    /// What the compiler makes of plain loops.
    Scalar(scalar::Scalar),
    /// AVX2, FMA and F16C: two registers per vector.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    /// AVX-512 F, BW and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
}

/// Work that is compiled for each instruction set. `call` must be `#[inline(always)]`, and so must
/// everything in it that touches vectors.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The work.
    fn call<S: Simd>(self, s: S) -> Self::Output;
}

/// Vectors of [`LANES`] `f32` numbers.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// The vector.
    type V: Copy;
    /// Rows of the tallest tile whose sums stay in registers, two vectors wide if `WIDE`.
    const TILE_ROWS: usize;
    /// Whether a tile of `TILE_ROWS` may be two vectors wide.
    const WIDE: bool;

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
        let all = Self::all();
        all.iter().find(|isa| isa.name() == name).copied().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|isa| isa.name()).collect();
            format!("LAPIDARY_CPU_ISA is `{name}`, this machine has {}", known.join(", "))
        })
    }

    /// Every set of this machine, narrowest first.
    pub(crate) fn all() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut all = vec![Isa::Scalar(scalar::Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx2::Avx2::detect().map(Isa::Avx2));
            all.extend(avx512::Avx512::detect().map(Isa::Avx512));
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
            Isa::Avx512(_) => "avx512",
        }
    }

    /// Runs a kernel with this set's instructions.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Scalar(s) => kernel.call(s),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(s) => s.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(s) => s.run(kernel),
        }
    }
}

/// Up to 16 numbers as a vector, zeros behind them.
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
