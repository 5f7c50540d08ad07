//! Numbers as a cache stores them.

use half::bf16;

use crate::matrix::Element;

/// The largest code.
const LARGEST: f32 = 127.0;
/// Rows with nothing above this are zeros; its inverse times 127 is still finite.
const NOTHING: f32 = 1e-35;

/// The highest bit of a fraction, in the half that is kept: with it nothing else need be kept of
/// what is not a number.
const QUIET: u32 = 0x40_0000;

/// How keys and values become numbers of a cache.
pub(crate) trait Cached: Element {
    /// Whether a row of one head has a scale: `x ≈ code · scale`.
    const SCALED: bool;

    /// What the numbers of a row are multiplied with before they are rounded, and its scale.
    fn factors(row: &[f32]) -> (f32, f32);

    /// A number as it is stored.
    fn encode(x: f32, factor: f32) -> Self;
}

impl Cached for f32 {
    const SCALED: bool = false;

    fn factors(_: &[f32]) -> (f32, f32) {
        (1.0, 1.0)
    }

    fn encode(x: f32, _: f32) -> f32 {
        x
    }
}

impl Cached for bf16 {
    const SCALED: bool = false;

    fn factors(_: &[f32]) -> (f32, f32) {
        (1.0, 1.0)
    }

    /// To the nearest, ties to even; what is not a number stays so. `bf16::from_f32` does the same
    /// with branches, and takes twice as long.
    fn encode(x: f32, _: f32) -> bf16 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let kept = if x.is_nan() { bits | QUIET } else { rounded };
        bf16::from_bits((kept >> 16) as u16)
    }
}

impl Cached for i8 {
    const SCALED: bool = true;

    /// A row that holds something that is not finite gets a scale that is not a number: it reaches
    /// the results of every query that sees it.
    fn factors(row: &[f32]) -> (f32, f32) {
        // Magnitudes are in the order of their bits, and what is not finite is above all others.
        let bits = row.iter().fold(0, |most, x| most.max(x.abs().to_bits()));
        let largest = f32::from_bits(bits);
        if !largest.is_finite() {
            return (0.0, f32::NAN);
        }
        if largest < NOTHING {
            return (0.0, 0.0);
        }
        (LARGEST / largest, largest / LARGEST)
    }

    fn encode(x: f32, factor: f32) -> i8 {
        // Adding and taking away 1.5·2²³ leaves no room for a fraction; `round` would be a call.
        const MAGIC: f32 = 12_582_912.0;
        ((x * factor + MAGIC) - MAGIC) as i8
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::Cached;

    #[test]
    fn halves_are_the_nearest_and_ties_are_even() {
        let of = |bits: u32| bf16::encode(f32::from_bits(bits), 1.0).to_bits();
        assert_eq!(of(0x3f80_7fff), 0x3f80);
        assert_eq!(of(0x3f80_8000), 0x3f80);
        assert_eq!(of(0x3f80_8001), 0x3f81);
        assert_eq!(of(0x3f81_8000), 0x3f82);
        assert_eq!(of(0xbf81_8000), 0xbf82);
        assert_eq!(of(0x7f80_0000), 0x7f80);
        for x in [1e-45f32, 3e-39, 0.1, -7.77, 3.4e38, f32::NEG_INFINITY] {
            assert_eq!(bf16::encode(x, 1.0), bf16::from_f32(x), "{x}");
        }
        // The lowest bits alone make it not a number.
        assert!(bf16::encode(f32::from_bits(0x7f80_0001), 1.0).is_nan());
        assert!(bf16::encode(-f32::NAN, 1.0).is_nan());
    }

    #[test]
    fn codes_are_within_half_a_step() {
        let rows = [
            [1.0, -3.0, 0.01, 2.999],
            [-1e-30, 3e-31, 0.0, -0.0],
            [1e30, -2e38, 3e38, 1.0],
            [0.0, 0.0, 0.0, 0.0],
            [1e-36, -1e-40, 0.0, 0.0],
        ];
        for row in rows {
            let (factor, scale) = i8::factors(&row);
            for x in row {
                let code = i8::encode(x, factor);
                let error = (x - f32::from(code) * scale).abs();
                assert!(error <= (0.5001 * scale).max(1e-35), "{x} as {code} · {scale}");
            }
        }
        let (factor, scale) = i8::factors(&rows[0]);
        assert_eq!((i8::encode(-3.0, factor), scale), (-127, 3.0 / 127.0));
        assert_eq!(i8::factors(&rows[3]), (0.0, 0.0));
    }

    #[test]
    fn what_is_not_finite_is_not_lost() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (factor, scale) = i8::factors(&[1.0, bad, -2.0]);
            assert!(scale.is_nan(), "{bad}");
            assert_eq!(i8::encode(1.0, factor), 0);
        }
    }
}
