//! Reading GGUF, llama.cpp's model format.
//!
//! `reader` finds what is in the file, `quants` says what its number formats become, `store` hands
//! out weights, `tokenizer` makes a `tokenizer.json` of its vocabulary, and `import` turns all of
//! it into the same table of values that a Hugging Face folder gives.
//!
//! Files are untrusted. Nothing is allocated for a count that the remaining bytes could not hold.

mod config;
mod cursor;
mod ggml_type;
mod import;
mod keys;
mod merges;
mod mmproj;
mod mmproj_config;
mod mmproj_names;
mod reader;
mod store;
mod tensor_names;
mod tokenizer;
mod tokenizer_json;
mod value;

// Bit shuffling over blocks of fixed size: every slice it indexes is an array, every shift a
// constant of the format, and a block has no value that is not allowed.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]
mod quants;

pub use ggml_type::GgmlType;
pub use import::{read_draft, read_model};
pub use mmproj::{ImportedTowers, read_towers};
pub use reader::{Gguf, TensorInfo};
pub use store::GgufStore;
pub use tokenizer::{Vocabulary, vocabulary};
pub use value::{Array, Scalar, Value};
