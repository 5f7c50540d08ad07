//! The parts of a tokenizer that the library runs: how text is normalised and split, and how tokens
//! become text again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::decode::DecoderKind;
use crate::error::{Error, Result};

/// The parts as the file says them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) decoder: Value,
}

/// The parts as the library runs them.
pub(super) struct TextParts {
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(super) decoder: DecoderKind,
}

impl Settings {
    /// Makes the parts.
    pub(super) fn text_parts(&self) -> Result<TextParts> {
        // The library that reads these parts was written for trusted files.
        let parts = catch_unwind(AssertUnwindSafe(|| -> Result<_> {
            Ok(TextParts {
                normalizer: part("normalizer", &self.normalizer)?,
                pre_tokenizer: part("pre_tokenizer", &self.pre_tokenizer)?,
                decoder: decoder_kind(&self.decoder)?,
            })
        }));
        parts.map_err(|_| invalid("a part of it can't be used"))?
    }
}

fn part<'de, T: Deserialize<'de>>(name: &str, value: &'de Value) -> Result<Option<T>> {
    match value {
        Value::Null => Ok(None),
        value => T::deserialize(value).map(Some).map_err(|e| invalid(format!("{name}: {e}"))),
    }
}

/// Recognises `Sequence[Replace, ByteFallback, Fuse]`, which maps each token to its bytes
/// independently; anything else is left to the library.
fn decoder_kind(decoder: &Value) -> Result<DecoderKind> {
    let is = |v: &Value, kind: &str| v.get("type").and_then(Value::as_str) == Some(kind);
    let steps = decoder.get("decoders").and_then(Value::as_array);
    if let Some([replace, bytes, fuse]) = steps.map(Vec::as_slice)
        && is(decoder, "Sequence")
        && is(replace, "Replace")
        && is(bytes, "ByteFallback")
        && is(fuse, "Fuse")
        && let Some(from) = replace.pointer("/pattern/String").and_then(Value::as_str)
        && let Some(to) = replace.get("content").and_then(Value::as_str)
        && !from.is_empty()
        && to.len() <= from.len()
    {
        return Ok(DecoderKind::Pieces { from: from.to_owned(), to: to.to_owned() });
    }
    Ok(DecoderKind::Joined(part::<DecoderWrapper>("decoder", decoder)?))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Tokenizer(what.into())
}
