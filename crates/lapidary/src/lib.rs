//! Runs Gemma models inside your program: text, images and audio, on the CPU or a GPU.
//!
#![doc = include_str!("example.md")]
//!
//! - [`Model`] is a model that is open: a file or folder, a name like `gemma4:e2b`, or the small one
//!   that is built in.
//! - [`Load`] says how it goes on a device; [`Load::plan`] tells what that would take.
//! - [`Engine`] is a handle of a model on a device. It is `Clone + Send + Sync`.
//! - [`Conversation`] keeps what was said; [`Request`] is one answer without a conversation.
//! - [`Answer`] is an iterator of [`Event`]s, and an async stream of the same. Dropping it cancels.
//! - [`Error::code`] tells failures apart by stable words.
//!
//! Images, videos and audio are [`Media`], given as bytes, files or decoded, inside the message that
//! shows them.

pub mod cache;
mod code;
mod conversation;
mod data_uri;
mod engine;
mod error;
mod event;
mod history;
mod load;
mod media;
mod message;
mod model;
#[cfg(feature = "hub")]
mod names;
mod plan;
mod pool;
mod prefix;
mod recipe;
mod request;
mod session;

pub use code::{ERROR_TABLE, ErrorCode, ErrorGroup, ErrorRow};
pub use conversation::Conversation;
pub use engine::{Answer, Embedding, Engine, Metrics};
pub use error::{Error, Result};
pub use event::{Event, Finish, FinishReason, Logprobs, Reply, Stats, ToolCall};
pub use history::check_history;
pub use load::{
    BackendInfo, DEFAULT_CONTEXT, DeviceChoice, Draft, Load, Loaded, LoadedRunner, backend_names,
    backends, devices,
};
pub use media::{
    Audio, Image, Media, Towers, arbitrary_audio, arbitrary_image, arbitrary_levels,
    arbitrary_samples,
};
pub use message::{Message, Part};
pub use model::{Model, Notice, Open, PEBBLE};
#[cfg(feature = "hub")]
pub use names::{Located, check_memory, choose_backend, locate, plan_of, pull};
pub use plan::Plan;
pub use prefix::PrefixCache;
pub use request::{Request, Sampling};

pub use lapidary_backend::{DeviceId, DeviceInfo, DeviceKind, KvType, MemoryPlan, Precision};
pub use lapidary_program::{Metadata, Modality, Program};
pub use lapidary_runner::{CancelToken, Runner, SamplingParams};
pub use lapidary_text::{Grammar, Prompt, SoftInput};

// The rooms below, for whoever needs more than answers.
pub use lapidary_backend as backend;
#[cfg(feature = "hub")]
pub use lapidary_hub as hub;
pub use lapidary_pebble as pebble;
pub use lapidary_program as program;
pub use lapidary_runner as runner;
pub use lapidary_text as text;
// Tools are declared as its values.
pub use serde_json;

#[cfg(test)]
mod tests {
    /// What is compiled here is what the README shows.
    #[test]
    fn the_readme_shows_the_example() {
        let example = include_str!("example.md").replace("```no_run", "```rust");
        let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
        assert!(std::fs::read_to_string(readme).unwrap().contains(&example), "{example}");
        assert!(example.lines().count() <= 24);
    }
}
