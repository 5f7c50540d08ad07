//! A program on an engine as numbers: speed, perplexity, divergence, and goldens.
//!
//! This room knows runners and engines. It may read clocks and what the system tells of memory.

mod bench;
mod eval;
pub mod golden;
mod memory;

pub use bench::{BenchTest, MediumTimes, bench_medium, bench_once};
pub use eval::{Divergence, Perplexity, divergence, perplexity, perplexity_of_every_token};
pub use memory::peak_memory_bytes;
