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
/// `f32`, so the rows are alike; one that rounds activations for integer products needs more room
/// in the last two.
pub(crate) fn linear(encoding: Encoding) -> f64 {
    match encoding {
        Encoding::Dense(DType::F32) => 2e-6,
        Encoding::Dense(_) => 2e-6,
        Encoding::Quant(q) if q.bits == 8 => 2e-6,
        Encoding::Quant(_) => 2e-6,
    }
}
