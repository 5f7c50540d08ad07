//! Runs conversations on an engine: tokenise, template, chunk, KV policy, sample, schedule, stop,
//! stats.
//!
//! This room knows `dyn Engine`, programs, tokenisers and templates.
//! It knows no device, no HTTP and no model family: everything about a model is in its program.
//!
//! ```text
//! let mut runner = Runner::new(engine)?;
//! let tokens = runner.chat_prompt(&ChatInput { messages: &messages, ..ChatInput::default() })?;
//! let request = Request::new(tokens, SamplingParams::of(runner.metadata()));
//! let finish = runner.generate(request, &CancelToken::new(), |event| {
//!     if let Event::Text { text } = event {
//!         print!("{text}");
//!     }
//! })?;
//! ```

mod batch;
mod bench;
mod chat;
mod error;
mod error_code;
mod eval;
mod generation;
pub mod golden;
mod kv;
mod media;
mod request;
mod runner;
mod sampler;
mod schedule;
mod soft;
mod stats;
mod stop;
mod tokenizer;

pub use bench::{BenchTest, MediumTimes, bench_medium, bench_once};
pub use chat::{
    ChatInput, ChatTemplate, Content, FunctionCall, Message, Part, Rendered, TokenNames, ToolCall,
};
pub use error::{Error, Result};
pub use error_code::{ERROR_TABLE, ErrorCode, ErrorGroup, ErrorRow};
pub use eval::{Divergence, Perplexity, divergence, perplexity, perplexity_of_every_token};
pub use media::{Medium, Prompt, SoftInput, SoftRun};
pub use request::{CancelToken, Event, Finish, FinishReason, GenerationId, Request};
pub use runner::{Rows, Runner, load_template};
pub use sampler::{History, Sampler, SamplingParams};
pub use stats::{Stats, peak_memory_bytes};
pub use tokenizer::{CacheUse, StreamDecoder, Tokenizer, load_tokenizer, load_tokenizer_cached};
