//! The Gemma family: configuration tables, graph builders, checkpoint readers, recipes.
//!
//! A member of the family is a [`TextConfig`] and its [`towers`]; one set of block functions turns
//! them into a program.
//! This room knows Hugging Face and GGUF names. It knows no backend and no HTTP.

macro_rules! untrusted {
    ($(#[$meta:meta])* $vis:vis mod $name:ident) => {
        #[deny(
            clippy::unwrap_used,
            clippy::expect_used,
            clippy::panic,
            clippy::indexing_slicing,
            clippy::arithmetic_side_effects,
            clippy::as_conversions
        )]
        $(#[$meta])*
        $vis mod $name;
    };
}

mod answer;
mod build;
mod config;
mod error;
pub mod names;
pub mod recipes;
mod released;
pub mod towers;

untrusted!(pub mod config_fields);
untrusted!(mod attach);
untrusted!(mod generation);
untrusted!(pub mod gguf);
untrusted!(pub mod hf);
untrusted!(pub mod hf_config);
untrusted!(mod hf_media);
untrusted!(mod hf_store);
untrusted!(mod hf_towers);
untrusted!(mod hf_weights);
untrusted!(mod import);
untrusted!(mod json_fields);
untrusted!(mod joined_store);
untrusted!(mod mlx);
untrusted!(mod mmproj);
untrusted!(mod recode);
untrusted!(mod shards);
untrusted!(mod torchao);
untrusted!(mod turned);

pub use answer::{add_answer_format, answer_format};
pub use attach::{attach_at, attach_gguf};
pub use build::{Built, build};
pub use config::{
    CentroidConfig, DraftConfig, EmbedScale, LayerConfig, LayerKind, MoeConfig, PerLayerInput,
    SAMPLING, TextConfig,
};
pub use error::{Error, Result};
pub use import::{
    Imported, ImportedDraft, MADE_BY, OpenOptions, Opened, assemble, open, open_noticing,
};
pub use mmproj::Notice;
pub use released::{RELEASED, Released};
