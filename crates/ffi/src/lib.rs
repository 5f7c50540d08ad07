//! The engine for Kotlin, Swift and TypeScript.
//!
//! UniFFI makes the other sides of this: what they call is exactly what is public here.
//!
//! - Nothing is called back. Streams are pulled: [`AnswerStream::next`], [`Loading::next`],
//!   [`Download::next`].
//! - What takes long is `async` and needs no runtime: it is done on threads of this crate, and the
//!   future is woken.
//! - There is one error with the codes of [`lapidary::ErrorCode`]. A panic is one of them.
//! - Whatever is dropped, on whatever thread, nobody waits: an engine ends on a thread of its own.

// The bridges that UniFFI writes are unsafe, and there is nothing else of that kind here.
#![allow(unsafe_code)]

mod answer;
mod conversation;
mod devices;
mod engine;
mod error;
mod hub;
mod load;
mod message;
mod model;
mod options;
mod work;

pub use answer::{AnswerStream, Event, Finish, FinishReason, Reply, Stats, TokenLogprob};
pub use conversation::Conversation;
pub use devices::{BackendInfo, DeviceInfo, DeviceKind, backends};
pub use engine::{Engine, Metrics};
pub use error::{ErrorCode, LapidaryError, Result, error_code_name};
pub use hub::{
    Download, DownloadProgress, DownloadedModel, Hub, HubOptions, KnownModel, KnownVariant, Offer,
};
pub use load::{Draft, KvType, LoadOptions, LoadProgress, Loading, Plan};
pub use message::{Message, Part, Role, ToolCall};
pub use model::{Modality, Model, ModelInfo, OpenOptions};
pub use options::{AnswerOptions, Format, Tool, ToolChoice};

uniffi::setup_scaffolding!("lapidary");

/// The version of the library.
#[uniffi::export]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_string()
}

/// A count as the other side has it: none there is ever as large as what does not fit.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
