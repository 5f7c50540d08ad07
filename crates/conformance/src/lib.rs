//! What every backend must do.
//!
//! [`suite::ops`] runs each op alone, in odd shapes and every weight encoding, and compares with
//! formulas in `f64` that are written here, independently of any backend, and with the reference.
//! [`suite::graphs`] runs random graphs of cheap ops, to find buffers that are reused too early.
//! [`suite::properties`] takes any program with a `forward` method and checks what must hold
//! whatever the numbers are: chunks, slots, rings, rewinding, traces, bad feeds.
//!
//! A backend's runner is one file in `tests/` with an ignore list of its own.

mod case;
mod graphs;
mod lab;
mod models;
mod ops;
mod properties;
mod random;
mod report;
pub mod suite;
mod tolerance;

pub use report::{Outcome, Report};
