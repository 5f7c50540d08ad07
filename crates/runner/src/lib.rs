//! Runs conversations on an engine: pages, schedule, sample, stop, stats.
//!
//! This room knows `dyn Engine`, programs, and prompts as `lapidary-text` makes them.
//! It knows no device, no HTTP and no model family: everything about a model is in its program.
//! It has no clock, file or thread of its own, so it runs wherever an engine does.
//!
//! ```text
//! let mut runner = Runner::new(engine)?;
//! let tokens = runner.chat_prompt(&ChatInput { messages: &messages, ..ChatInput::default() }, &[])?;
//! let request = Request::new(tokens, SamplingParams::of(runner.metadata()));
//! let finish = runner.generate(request, &CancelToken::new(), |event| {
//!     if let Event::Text { text } = event {
//!         print!("{text}");
//!     }
//! })?;
//! ```

mod batch;
mod clock;
mod draft;
mod drafts;
mod error;
mod flight;
mod generation;
mod logprobs;
mod pages;
// Reads files that anybody may have written.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss
)]
mod prefix_file;
mod request;
mod runner;
mod sampler;
mod scheduler;
mod score;
mod soft;
mod stats;
mod step;
mod thinking;

pub use clock::Clock;
#[cfg(not(target_arch = "wasm32"))]
pub use clock::SystemClock;
pub use draft::{Drafter, Drafting, Lookup};
pub use error::{Error, Result};
pub use request::{
    CancelToken, Event, Finish, FinishReason, GenerationId, Logprobs, MAX_LOGPROBS, Request,
    ThinkingLimit,
};
pub use runner::{Rows, Runner, RunnerOptions};
pub use sampler::{History, Sampler, SamplingParams};
pub use stats::Stats;
