//! What a model *is*, with no device in it.
//!
//! A [`Program`] holds methods (graphs of [`Op`]s), state declarations (KV caches), metadata,
//! weight declarations and the bytes behind them, and small blobs (tokenizer, chat template).
//! This room knows bytes, shapes and op names.
//! It knows nothing of devices, of checkpoint formats other than `.lap`, or of any model family.
//!
//! Files are untrusted: everything that comes from one is checked before it is used, and the
//! modules that touch them may not panic, index, or do unchecked arithmetic.

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
pub mod lap;

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod media_rules;
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod origin;
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod rules;
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod validate;

mod answer;
mod blobs;
pub mod cache_file;
mod dtype;
mod encoding;
mod error;
mod file;
mod graph;
mod media;
mod metadata;
mod op;
pub mod out_file;
mod program;
mod shape;
mod weights;

pub use answer::{AnswerFormat, CallFormat, CallSyntax, ThinkingFormat, ToolsInText};
pub use blobs::{Blob, BlobError};
pub use dtype::DType;
pub use encoding::{Encoding, QuantLayout, ScaleFormat};
pub use error::{Error, Result};
pub use file::{FileBytes, read_at_most};
pub use graph::{Graph, GraphBuilder, Input, Node, Output, ValueId, ValueType};
pub use media::{
    AudioFrames, AudioSpec, ImageSize, ImageSpec, LogMel, Media, PanAndScan, PatchLayout, Resample,
    SoftTokens, VideoSpec,
};
pub use metadata::{Metadata, Modality, SamplingDefaults};
pub use op::{
    Activation, AttentionSpec, AxialRopeSpec, LocalAttentionSpec, Op, RopeSpec, input, output,
};
pub use program::{Description, KvGroup, Method, Program, StateDecl, blob, method};
pub use shape::{Dim, Shape, Sym};
pub use weights::{Access, MemoryStore, Part, Weight, WeightDecl, WeightStore};
