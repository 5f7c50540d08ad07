//! What every API stands on: models, answers, limits, keys, failures. Nothing here knows the words of
//! an API.

mod ask;
pub mod base64;
mod config;
mod entry;
mod failure;
mod keys;
mod limits;
mod log;
pub mod media;
mod metrics;
mod pieces;
mod registry;
mod secret;
mod time;
mod wanted;

pub use ask::{Answers, Asked, Made};
pub use config::{Bytes, Config, KeepAlive, LogFormat};
pub use entry::{Entry, Lease, ModelState};
pub(crate) use failure::NO_THREADS;
pub use failure::{Dialect, Failure};
pub use keys::{Keys, Scope};
pub use limits::Limits;
pub use log::{Log, Trace, round};
pub use metrics::Metrics;
pub use pieces::{Call, End, Piece, Pieces, Reason};
pub use registry::{Making, Registry, Source};
pub use secret::{new_id, secret};
pub use time::{rfc3339, unix};
pub use wanted::{Chat, Effort, Format, Input, Sampling, ToolChoice, Wanted, without_billing};

/// What a handler returns.
pub type Result<T, E = Failure> = std::result::Result<T, E>;
