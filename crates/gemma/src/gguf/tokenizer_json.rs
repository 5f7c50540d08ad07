//! Writing Hugging Face's `tokenizer.json` for BPE over pieces with `▁` for spaces.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::{Value as Json, json};

use super::merges::Merge;
use crate::error::{Error, Result};

/// What stands for a space inside pieces.
pub(super) const SPACE: &str = "▁";

/// What a file holds.
pub(super) struct Contents<'a> {
    /// Pieces by id.
    pub tokens: &'a [Cow<'a, str>],
    /// Pieces that are matched in raw text before anything else, and whether they are special.
    pub added: &'a [(u32, bool)],
    /// The best merge first.
    pub merges: &'a [Merge],
    /// What stands for text that has neither pieces nor bytes.
    pub unk: Option<u32>,
    /// What is put before a text.
    pub bos: Option<u32>,
    /// Whether a text begins with a space of its own.
    pub space_prefix: bool,
}

/// The file's bytes.
pub(super) fn write(c: &Contents<'_>) -> Result<Vec<u8>> {
    let pieces = Pieces(c.tokens);
    let added_tokens: Vec<AddedToken<'_>> = c
        .added
        .iter()
        .map(|(id, special)| AddedToken {
            id: *id,
            content: pieces.text(*id),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: *special,
        })
        .collect();
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let normalizer = if c.space_prefix {
        let prepend = json!({"type": "Prepend", "prepend": SPACE});
        json!({"type": "Sequence", "normalizers": [prepend, replace]})
    } else {
        replace
    };
    let json = TokenizerJson {
        version: "1.0",
        truncation: Json::Null,
        padding: Json::Null,
        added_tokens,
        normalizer,
        pre_tokenizer: json!({
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": false,
        }),
        post_processor: post_processor(c.bos.map(|id| (id, pieces.text(id)))),
        decoder: json!({
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        }),
        model: Bpe {
            kind: "BPE",
            dropout: None,
            unk_token: c.unk.map(|id| pieces.text(id)),
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            vocab: VocabJson(pieces),
            merges: MergesJson(pieces, c.merges),
        },
    };
    serde_json::to_vec(&json)
        .map_err(|source| Error::Json { file: "tokenizer.json".to_string(), source })
}

/// What is put around a text: the first token, if there is one.
fn post_processor(bos: Option<(u32, &str)>) -> Json {
    let sequence = |id: &str, type_id: u32| json!({"Sequence": {"id": id, "type_id": type_id}});
    let mut single = vec![sequence("A", 0)];
    let mut pair = vec![sequence("A", 0), sequence("B", 1)];
    let mut special_tokens = json!({});
    if let Some((id, text)) = bos {
        let token = |type_id: u32| json!({"SpecialToken": {"id": text, "type_id": type_id}});
        single.insert(0, token(0));
        pair = vec![token(0), sequence("A", 0), token(1), sequence("B", 1)];
        special_tokens = json!({text: {"id": text, "ids": [id], "tokens": [text]}});
    }
    json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": special_tokens,
    })
}

#[derive(Serialize)]
struct TokenizerJson<'a> {
    version: &'static str,
    truncation: Json,
    padding: Json,
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
    model: Bpe<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Bpe<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<f32>,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<&'a str>,
    end_of_word_suffix: Option<&'a str>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: VocabJson<'a>,
    merges: MergesJson<'a>,
}

/// Pieces by id.
#[derive(Clone, Copy)]
struct Pieces<'a>(&'a [Cow<'a, str>]);

impl<'a> Pieces<'a> {
    fn text(self, id: u32) -> &'a str {
        usize::try_from(id).ok().and_then(|i| self.0.get(i)).map_or("", AsRef::as_ref)
    }
}

/// Pieces as a map from text to id.
struct VocabJson<'a>(Pieces<'a>);

/// Merges as pairs of text.
struct MergesJson<'a>(Pieces<'a>, &'a [Merge]);

impl Serialize for VocabJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.0.len()))?;
        for (id, text) in (0u32..).zip(self.0.0) {
            map.serialize_entry(text, &id)?;
        }
        map.end()
    }
}

impl Serialize for MergesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.1.len()))?;
        for (left, right) in self.1 {
            seq.serialize_element(&[self.0.text(*left), self.0.text(*right)])?;
        }
        seq.end()
    }
}

