//! The Gemma family: configuration tables, graph builders, checkpoint readers, recipes.
//!
//! A member of the family is a [`TextConfig`]; one set of block functions turns it into a program.
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

mod build;
mod config;
mod error;
pub mod names;
pub mod recipes;
mod released;

untrusted!(pub mod gguf);
untrusted!(pub mod hf);
untrusted!(pub mod hf_config);
untrusted!(mod hf_store);
untrusted!(mod hf_weights);
untrusted!(mod import);
untrusted!(mod mlx);
untrusted!(mod recode);
untrusted!(mod shards);
untrusted!(mod torchao);

pub use build::{Built, build};
pub use config::{
    CentroidConfig, DraftConfig, EmbedScale, LayerConfig, LayerKind, MoeConfig, PerLayerInput,
    SAMPLING, TextConfig,
};
pub use error::{Error, Result};
pub use import::{Imported, ImportedDraft, MADE_BY, OpenOptions, assemble, open};
pub use released::{RELEASED, Released};
