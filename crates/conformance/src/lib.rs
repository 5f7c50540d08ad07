//! What every backend must do.
//!
//! A [`Suite`] has three kinds of tests. Each op runs alone, in odd shapes and every weight encoding,
//! and is compared with formulas in `f64` that are written here, independently of any backend, and
//! with the reference. Random graphs of cheap ops find buffers that are reused too early. Small random
//! models, and any program with a `forward` method, are checked for what must hold whatever the
//! numbers are: chunks, sequences, windows, rewinding, traces, bad feeds.
//!
//! A backend is added by one file in `tests/` that names it and its [`Class`] of tolerance:
//!
//! ```ignore
//! fn main() -> std::process::ExitCode {
//!     lapidary_conformance::run(vec![Suite::new("cpu", &CpuBackend, Class::EqualBits)])
//! }
//! ```
//!
//! Every case is a test of its own:
//!
//! ```text
//! cargo test -p lapidary-conformance --test cpu -- --list
//! cargo test -p lapidary-conformance --test cpu -- cpu/linear/q4
//! ```

mod case;
mod cover;
mod graphs;
pub mod harness;
mod lab;
mod models;
mod ops;
mod paging;
mod properties;
mod random;
mod suite;
mod tolerance;

pub use case::load;
pub use paging::{Paged, Paging, Place, Placed, limits, with_pages};
pub use suite::{Kernels, Suite, Turns, properties, run};
pub use tolerance::Class;
