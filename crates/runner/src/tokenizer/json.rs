//! `tokenizer.json`, read once, checked, and taken apart.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Value;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer as Plain,
};

use super::Special;
use super::decode::{DecoderKind, Pieces};
use crate::error::{Error, Result};

/// The largest file that is read; the largest published one has 33 MiB.
const MAX_BYTES: usize = 128 << 20;

/// The longest token, in bytes; real ones have less than a hundred.
const MAX_TOKEN_BYTES: usize = 4096;

/// The most special tokens; real files have some dozens up to some thousands.
const MAX_SPECIALS: u32 = 65_536;

/// A `tokenizer.json` taken apart.
pub(super) struct Parts {
    pub(super) plain: Plain,
    /// By id.
    pub(super) specials: Vec<Special>,
    pub(super) pieces: Pieces,
    pub(super) unk_id: Option<u32>,
}

/// Reads and checks the file. `serde_json` bounds the nesting.
pub(super) fn read(bytes: &[u8], vocab_size: u32) -> Result<Parts> {
    if bytes.len() > MAX_BYTES {
        return Err(invalid(format!("{} bytes, the limit is {MAX_BYTES}", bytes.len())));
    }
    let file: File = serde_json::from_slice(bytes).map_err(|e| invalid(e.to_string()))?;
    let File { added_tokens, normalizer, pre_tokenizer, decoder, mut model } = file;
    place_added(&added_tokens, &mut model.vocab)?;
    check_ids(&model.vocab, &added_tokens, vocab_size)?;
    check_model(&model)?;
    let unk_id = model.unk_token.as_ref().and_then(|t| model.vocab.get(t).copied());
    let (specials, ordinary): (Vec<Added>, Vec<Added>) =
        added_tokens.into_iter().partition(|t| t.special);
    let specials = take_specials(specials)?;
    // The library that reads the parts was written for trusted files.
    let built = catch_unwind(AssertUnwindSafe(|| -> Result<_> {
        let kind = decoder_kind(&decoder).map_err(|e| invalid(format!("decoder: {e}")))?;
        let pieces = Pieces::new(&model.vocab, &specials, kind);
        Ok((build(model, &normalizer, &pre_tokenizer, ordinary)?, pieces))
    }));
    let (plain, pieces) = built.map_err(|_| invalid("a part of it can't be used"))??;
    Ok(Parts { plain, specials, pieces, unk_id })
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: Vocab,
    #[serde(deserialize_with = "merges")]
    merges: Merges,
}

/// Gives every added token its declared id in the vocabulary, so that taking the special ones out
/// can't renumber the others.
fn place_added(added: &[Added], vocab: &mut Vocab) -> Result<()> {
    for token in added {
        if token.content.is_empty() {
            return Err(invalid(format!("added token {} is empty", token.id)));
        }
        let have = *vocab.entry(token.content.clone()).or_insert(token.id);
        if have != token.id {
            return Err(invalid(format!(
                "token `{}` has two ids, {have} and {}",
                token.content, token.id
            )));
        }
    }
    Ok(())
}

fn check_ids(vocab: &Vocab, added: &[Added], vocab_size: u32) -> Result<()> {
    let specials: HashSet<&str> =
        added.iter().filter(|t| t.special).map(|t| t.content.as_str()).collect();
    let mut ids: Vec<u32> = Vec::with_capacity(vocab.len());
    for (token, id) in vocab {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(invalid(format!(
                "token {id} has {} bytes, the limit is {MAX_TOKEN_BYTES}",
                token.len()
            )));
        }
        // A special token that the program has no row for is refused only when it is used.
        let above = id.saturating_sub(vocab_size);
        let spare = specials.contains(token.as_str()) && above < MAX_SPECIALS;
        if *id >= vocab_size && !spare {
            return Err(invalid(format!(
                "token `{token}` has id {id}, and the model has {vocab_size} rows"
            )));
        }
        ids.push(*id);
    }
    ids.sort_unstable();
    match ids.iter().zip(ids.iter().skip(1)).find(|(a, b)| a == b) {
        Some((id, _)) => Err(invalid(format!("two tokens have id {id}"))),
        None => Ok(()),
    }
}

/// Checks what the BPE builder would otherwise panic on, and says which merge it is.
fn check_model(model: &Model) -> Result<()> {
    match model.kind.as_deref() {
        None | Some("BPE") => {}
        Some(other) => {
            return Err(invalid(format!("model type `{other}` is not supported; BPE is")));
        }
    }
    if let Some(unk) = &model.unk_token
        && !model.vocab.contains_key(unk)
    {
        return Err(invalid(format!("the unknown token `{unk}` is not in the vocabulary")));
    }
    let prefix = model.continuing_subword_prefix.as_deref().unwrap_or("");
    let mut joined = String::new();
    for (rank, (a, b)) in model.merges.iter().enumerate() {
        let tail = b.strip_prefix(prefix);
        joined.clear();
        joined.push_str(a);
        joined.push_str(tail.unwrap_or(""));
        let known = |t: &str| model.vocab.contains_key(t);
        if tail.is_none() || !known(a) || !known(b) || !known(&joined) {
            return Err(invalid(format!("merge {rank} (`{a}` `{b}`) is not of the vocabulary")));
        }
    }
    Ok(())
}

fn take_specials(added: Vec<Added>) -> Result<Vec<Special>> {
    if u32::try_from(added.len()).is_ok_and(|n| n > MAX_SPECIALS) {
        return Err(invalid(format!(
            "{} special tokens, the limit is {MAX_SPECIALS}",
            added.len()
        )));
    }
    if let Some(t) = added.iter().find(|t| t.single_word) {
        return Err(invalid(format!("special token `{}` uses `single_word`", t.content)));
    }
    let mut specials: Vec<Special> = added
        .into_iter()
        .map(|t| Special { id: t.id, content: t.content, lstrip: t.lstrip, rstrip: t.rstrip })
        .collect();
    specials.sort_by_key(|s| s.id);
    specials.dedup_by_key(|s| s.id);
    Ok(specials)
}

fn build(
    model: Model,
    normalizer: &Value,
    pre_tokenizer: &Value,
    ordinary: Vec<Added>,
) -> Result<Plain> {
    let part = |name: &str, e: &dyn fmt::Display| invalid(format!("{name}: {e}"));
    let mut builder = BPE::builder()
        .vocab_and_merges(model.vocab, model.merges)
        // Its cache is by word; text is one long word here, and a cache would only keep it alive.
        .cache_capacity(0)
        .fuse_unk(model.fuse_unk)
        .byte_fallback(model.byte_fallback)
        .ignore_merges(model.ignore_merges);
    if let Some(unk) = model.unk_token {
        builder = builder.unk_token(unk);
    }
    if let Some(prefix) = model.continuing_subword_prefix.filter(|p| !p.is_empty()) {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = model.end_of_word_suffix.filter(|s| !s.is_empty()) {
        builder = builder.end_of_word_suffix(suffix);
    }
    let mut plain = Plain::new(builder.build().map_err(|e| part("model", &e))?);
    if !normalizer.is_null() {
        let n = NormalizerWrapper::deserialize(normalizer).map_err(|e| part("normalizer", &e))?;
        plain.with_normalizer(Some(n)).map_err(|e| part("normalizer", &e))?;
    }
    if !pre_tokenizer.is_null() {
        let p = PreTokenizerWrapper::deserialize(pre_tokenizer)
            .map_err(|e| part("pre_tokenizer", &e))?;
        plain.with_pre_tokenizer(Some(p));
    }
    plain
        .add_tokens(ordinary.into_iter().map(|t| AddedToken {
            content: t.content,
            single_word: t.single_word,
            lstrip: t.lstrip,
            rstrip: t.rstrip,
            normalized: t.normalized,
            special: false,
        }))
        .map_err(|e| part("added_tokens", &e))?;
    Ok(plain)
}

/// Recognises `Sequence[Replace, ByteFallback, Fuse]`, which maps each token to its bytes
/// independently; anything else is left to the library.
fn decoder_kind(decoder: &Value) -> std::result::Result<DecoderKind, serde_json::Error> {
    if decoder.is_null() {
        return Ok(DecoderKind::Joined(None));
    }
    let kind = |v: &Value| v.get("type").and_then(Value::as_str).map(str::to_owned);
    let steps = decoder.get("decoders").and_then(Value::as_array);
    if let Some([replace, bytes, fuse]) = steps.map(Vec::as_slice)
        && kind(decoder).as_deref() == Some("Sequence")
        && kind(replace).as_deref() == Some("Replace")
        && kind(bytes).as_deref() == Some("ByteFallback")
        && kind(fuse).as_deref() == Some("Fuse")
        && let Some(from) = replace.pointer("/pattern/String").and_then(Value::as_str)
        && let Some(to) = replace.get("content").and_then(Value::as_str)
        && !from.is_empty()
        && to.len() <= from.len().saturating_mul(4)
    {
        return Ok(DecoderKind::Pieces { from: from.to_owned(), to: to.to_owned() });
    }
    Ok(DecoderKind::Joined(Some(DecoderWrapper::deserialize(decoder)?)))
}

/// Merges as `["a", "b"]` or, in older files, `"a b"`.
fn merges<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Merges, D::Error> {
    struct All;
    struct One((String, String));
    struct OneVisitor;

    impl<'de> Visitor<'de> for OneVisitor {
        type Value = One;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a merge: two strings")
        }
        fn visit_str<E: de::Error>(self, s: &str) -> std::result::Result<One, E> {
            match s.split_once(' ') {
                Some((a, b)) if !b.contains(' ') => Ok(One((a.to_owned(), b.to_owned()))),
                _ => Err(E::invalid_value(de::Unexpected::Str(s), &self)),
            }
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut s: A) -> std::result::Result<One, A::Error> {
            let a = s.next_element()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
            let b = s.next_element()?.ok_or_else(|| de::Error::invalid_length(1, &self))?;
            match s.next_element::<de::IgnoredAny>()? {
                None => Ok(One((a, b))),
                Some(_) => Err(de::Error::invalid_length(3, &self)),
            }
        }
    }
    impl<'de> Deserialize<'de> for One {
        fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
            d.deserialize_any(OneVisitor)
        }
    }
    impl<'de> Visitor<'de> for All {
        type Value = Merges;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of merges")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut s: A) -> std::result::Result<Merges, A::Error> {
            let mut merges = Merges::new();
            while let Some(One(merge)) = s.next_element()? {
                merges.push(merge);
            }
            Ok(merges)
        }
    }
    deserializer.deserialize_seq(All)
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Tokenizer(what.into())
}
