//! Elementary functions on vectors, to about one unit in the last place.

use super::Simd;

/// Below this `exp` is held: the result is 1.2e-38, the least normal number.
const EXP_LOW: f32 = -87.336_54;
/// Above this `exp` is held, short of infinity.
const EXP_HIGH: f32 = 88.376_26;

/// `e^x`, held at the ends of the range of normal numbers.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.min(s.splat(EXP_HIGH), s.max(s.splat(EXP_LOW), x));
    let (power, rest) = split(s, x);
    s.mul_add(power, rest, power)
}

/// `tanh x = (e^2x − 1) / (e^2x + 1)`, with `e^2x − 1` computed as such, so that small `x` keep
/// their relative accuracy.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    // tanh 10 is 1 to the last bit.
    let x = s.min(s.splat(10.0), s.max(s.splat(-10.0), x));
    let (power, rest) = split(s, s.add(x, x));
    let minus_one = s.mul_add(power, rest, s.sub(power, s.splat(1.0)));
    s.div(minus_one, s.add(minus_one, s.splat(2.0)))
}

/// `0.5·x·(1 + tanh u) = x / (1 + e^−2u)`, `u = √(2/π)·(x + 0.044715·x³)`.
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    const MINUS_2_SQRT_2_OVER_PI: f32 = -1.595_769;
    let x2 = s.mul(x, x);
    let u = s.mul(x, s.mul_add(x2, s.splat(0.044715), s.splat(1.0)));
    let e = exp(s, s.mul(u, s.splat(MINUS_2_SQRT_2_OVER_PI)));
    s.div(x, s.add(e, s.splat(1.0)))
}

/// `x / (1 + e^−gate)`.
#[inline(always)]
pub(crate) fn times_sigmoid<S: Simd>(s: S, x: S::V, gate: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), gate));
    s.div(x, s.add(e, s.splat(1.0)))
}

/// `2^x` for `x ≤ 0`, held at the least normal number. Cheaper than [`exp`], for attention, which
/// takes one of these for each pair of rows.
#[inline(always)]
pub(crate) fn exp2_of_negative<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.max(s.splat(-126.0), x);
    let n = s.round(x);
    let r = s.sub(x, n);
    // (2^r − 1) / r for |r| ≤ 1/2, the largest relative error of 2^r made small: 2e-9.
    let mut p = s.splat(1.535_336_2e-4);
    for c in [1.339_887_4e-3, 9.618_437e-3, 5.550_332_4e-2, 2.402_264_8e-1, 6.931_472e-1] {
        p = s.mul_add(p, r, s.splat(c));
    }
    s.mul(s.mul_add(p, r, s.splat(1.0)), s.exp2_int(n))
}

/// `e^x = 2^n · (1 + rest)`: returns `2^n` and `rest`. `x` must be in the range of `exp`.
#[inline(always)]
fn split<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts; the first has so few bits that its product with `n` is exact.
    let r = s.mul_add(n, s.splat(-0.693_359_4), x);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    // The Taylor series of (e^r − 1 − r) / r² for |r| ≤ ln 2 / 2; the next term is below 1e-8.
    let mut p = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = s.mul_add(p, r, s.splat(c));
    }
    let rest = s.mul_add(s.mul(r, r), p, r);
    (s.exp2_int(n), rest)
}

#[cfg(test)]
mod tests {
    use super::super::{Isa, Kernel, LANES, Simd};
    use super::{exp, exp2_of_negative, gelu_tanh, tanh, times_sigmoid};

    struct Apply<'a>(&'a [f32], &'a mut [f32], u8);

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn call<S: Simd>(self, s: S) {
            for (x, y) in self.0.chunks_exact(LANES).zip(self.1.chunks_exact_mut(LANES)) {
                // SAFETY: the chunks have 16 numbers.
                unsafe {
                    let x = s.load(x.as_ptr());
                    let v = match self.2 {
                        0 => exp(s, x),
                        1 => tanh(s, x),
                        2 => gelu_tanh(s, x),
                        3 => times_sigmoid(s, x, x),
                        _ => exp2_of_negative(s, x),
                    };
                    s.store(y.as_mut_ptr(), v);
                }
            }
        }
    }

    fn check(which: u8, low: f32, high: f32, bound: f64, f: impl Fn(f64) -> f64) {
        let n = 1 << 16;
        let xs: Vec<f32> = (0..n).map(|i| low + (high - low) * i as f32 / n as f32).collect();
        for isa in Isa::all() {
            let mut ys = vec![0.0; n];
            isa.run(Apply(&xs, &mut ys, which));
            for (x, y) in xs.iter().zip(&ys) {
                let want = f(f64::from(*x));
                let error = (f64::from(*y) - want).abs() / want.abs().max(1e-30);
                assert!(error < bound, "{isa:?} f{which}({x}) = {y}, not {want}: {error:e}");
            }
        }
    }

    #[test]
    fn exp_is_accurate() {
        check(0, -87.0, 88.0, 2e-7, f64::exp);
        check(0, -1.0, 1.0, 2e-7, f64::exp);
    }

    #[test]
    fn tanh_is_accurate() {
        check(1, -12.0, 12.0, 4e-7, f64::tanh);
        check(1, -0.01, 0.01, 4e-7, f64::tanh);
    }

    #[test]
    fn gelu_is_accurate() {
        let gelu = |x: f64| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        };
        check(2, -2.0, 20.0, 1e-6, gelu);
    }

    #[test]
    fn silu_is_accurate() {
        check(3, -20.0, 20.0, 4e-7, |x| x / (1.0 + (-x).exp()));
    }

    #[test]
    fn powers_of_two_are_accurate() {
        check(4, -126.0, 0.0, 2e-7, f64::exp2);
        check(4, -1.0, 0.0, 2e-7, f64::exp2);
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        for isa in Isa::all() {
            for which in 0..5 {
                let mut ys = [0.0; LANES];
                isa.run(Apply(&[f32::NAN; LANES], &mut ys, which));
                assert!(ys.iter().all(|y| y.is_nan()), "{isa:?} f{which}");
            }
        }
    }
}
