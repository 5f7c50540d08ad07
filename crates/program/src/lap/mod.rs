//! The `.lap` file: a program as one safetensors file.
//!
//! `__metadata__` says what it is. Weights stand under their names, one tensor per part; everything
//! else is a `U8` tensor under `lapidary/`: `program.json`, the blobs, and `blake3.json`, the hash of
//! every other tensor by name. Tensors are ordered so that each starts at a multiple of the
//! largest power of two (up to 64) that divides its size, and the header is padded to 64 bytes:
//! a mapped file can be used in place.

mod read;
mod sniff;
mod write;

pub use read::{check_hashes, check_hashes_in, from_bytes, open};
pub use sniff::{Kind, sniff};
pub use write::{write, write_file};

use crate::dtype::DType;

/// The version that is written.
pub const VERSION: u32 = 1;
/// The oldest version that is read.
pub const OLDEST_VERSION: u32 = 1;

/// `__metadata__.format`.
const FORMAT: &str = "lapidary";
/// Everything that is not a weight stands under this prefix.
const PREFIX: &str = "lapidary/";
/// The description.
const PROGRAM: &str = "lapidary/program.json";
/// The hashes, the last tensor of the file: a JSON object from names to hexadecimal digits.
const HASHES: &str = "lapidary/blake3.json";

fn to_safetensors(dtype: DType) -> safetensors::Dtype {
    match dtype {
        DType::F32 => safetensors::Dtype::F32,
        DType::F16 => safetensors::Dtype::F16,
        DType::Bf16 => safetensors::Dtype::BF16,
        DType::I8 => safetensors::Dtype::I8,
        DType::U8 => safetensors::Dtype::U8,
        DType::I64 => safetensors::Dtype::I64,
    }
}
