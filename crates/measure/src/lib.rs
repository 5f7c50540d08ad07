//! A program on an engine as numbers: speed, perplexity, divergence, and goldens; and the speed of a
//! server, which is asked over HTTP.
//!
//! This room knows runners and engines. It may read clocks and what the system tells of memory, and
//! connects to the server that it is given.

mod batched;
mod bench;
mod drafted;
mod eval;
pub mod golden;
mod memory;
mod served;

pub use batched::{BatchTest, BatchTimes, bench_batch};
pub use bench::{BenchTest, MediumTimes, bench_medium, bench_once};
pub use drafted::bench_drafted;
pub use eval::{Divergence, Perplexity, divergence, perplexity, perplexity_of_every_token};
pub use memory::peak_memory_bytes;
pub use served::{
    EventReader, Events, Latency, ServeReport, ServeTest, Served, ServerError, ServerUrl, Stopper,
    bench_server,
};
