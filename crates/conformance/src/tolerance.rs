//! How far a backend may be from the truth, all in one place.
//!
//! An error is the largest difference of a tensor, divided by the largest number of the true
//! tensor, or by 1 if that is less.

use lapidary_program::{DType, Encoding};

/// Numbers that are only moved or rounded once.
pub(crate) const ELEMENTWISE: f64 = 1e-6;
/// Sums over channels, and functions of such sums.
pub(crate) const SUMS: f64 = 4e-6;
/// Logits of a whole small model, against the reference or another way to run it.
pub(crate) const MODEL: f64 = 1e-5;

/// Products with a weight of this encoding. All backends so far decode weights exactly and sum in
/// `f32`; one that rounds activations for integer dot products gets its own column here.
pub(crate) fn linear(encoding: Encoding) -> f64 {
    match encoding {
        Encoding::Dense(DType::F32) => 2e-6,
        Encoding::Dense(DType::F16) => 2e-6,
        Encoding::Dense(_) => 2e-6,
        Encoding::Quant(q) => match q.bits {
            8 => 2e-6,
            4..8 => 2e-6,
            _ => 2e-6,
        },
    }
}
