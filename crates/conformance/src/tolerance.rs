//! How far a backend may be from the truth, all in one place.
//!
//! An error is the largest difference of a tensor, divided by the largest number of the true
//! tensor, or by 1 if that is less.

/// How far two ways of one backend to compute the same may be apart: a prompt cut otherwise, batched
/// otherwise, on other threads. A backend's runner states it. How far any backend may be from the
/// truth is the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Not at all: all bits are equal.
    EqualBits,
    /// A little: sums depend on nothing but a chunk's length.
    OneOrder,
    /// By the order of sums: there are other kernels for few tokens than for many, and ops are fused
    /// where nobody looks.
    AnyOrder,
}

impl Class {
    /// How far logits may be apart, by whether activations or caches are rounded.
    pub(crate) fn tolerance(self, rounded: bool) -> f64 {
        match self {
            Class::EqualBits => 0.0,
            Class::OneOrder => MODEL,
            Class::AnyOrder if rounded => ROUNDED_WAYS,
            Class::AnyOrder => WAYS,
        }
    }

    /// Whether a trace shows the bits that a run makes.
    pub(crate) fn has_exact_trace(self) -> bool {
        self != Class::AnyOrder
    }
}

/// Numbers that are only moved or rounded once.
pub(crate) const ELEMENTWISE: f64 = 1e-6;
/// Sums over channels, and functions of such sums.
pub(crate) const SUMS: f64 = 4e-6;
/// Logits of a whole small model, against the reference.
pub(crate) const MODEL: f64 = 1e-5;
/// The same against another way to run it, on a backend that does not sum in the same order whatever
/// the chunk. A row is judged by its own largest logit there. The largest seen is 2.8e-5, with weights
/// of four bits whose biases nearly cancel what codes add up to.
const WAYS: f64 = 5e-5;

/// Products with a weight, activations as they are. All backends decode weights exactly and sum in
/// `f32`, so this holds for every encoding.
pub(crate) const LINEAR: f64 = 2e-6;

/// The same where activations may be rounded (`Precision::Fast`): to bytes, a scale per token and 32
/// channels at most, in a linear or experts with quantised weights, and to `bf16` with weights of
/// `bf16`. The rounding to bytes is some 0.5 % of an output's spread, that to `bf16` less; over
/// thousands of outputs 1.44e-2 is the largest seen.
pub(crate) const FAST_LINEAR: f64 = 1.5e-2;
/// Logits of a whole small model under `Precision::Fast`, caches in `bf16`, against the reference.
/// Random weights in few channels are the worst case: the largest seen is 4.1e-2. Real models are
/// judged by KL.
pub(crate) const FAST_MODEL: f64 = 8e-2;

/// The same as `WAYS` where activations or caches are rounded: a number on the edge between two steps
/// goes to one or the other, and f16 for many tokens is not what bytes are for few. The largest seen
/// is 1.3e-5 in software and 2.6e-3 on an NVIDIA H200.
const ROUNDED_WAYS: f64 = 5e-3;

/// Attention over a cache of `bf16` keys and values (`KvType::Bf16`), against numbers that are not
/// rounded. A number moves by at most 2⁻⁹ of itself, and scores that move shift weight between keys:
/// the largest seen is 1.1e-2.
pub(crate) const KV_BF16: f64 = 2e-2;
/// The same over bytes (`KvType::Int8`). A number moves by at most 1/254 of the largest of its row,
/// which for large numbers is what `bf16` does, too: the largest seen is 1.3e-2.
pub(crate) const KV_INT8: f64 = 2.5e-2;
/// Logits of a whole small model over `bf16` caches, against the reference. Random weights make
/// attention sharper than training does: the largest seen is 1.2e-2. Real models are judged by
/// perplexity.
pub(crate) const KV_BF16_MODEL: f64 = 2.5e-2;
/// The same over bytes: the largest seen is 6.2e-2.
pub(crate) const KV_INT8_MODEL: f64 = 1e-1;
