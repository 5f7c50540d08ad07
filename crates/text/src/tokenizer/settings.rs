//! How text is normalised and split, and how tokens become text again.
//!
//! A file may say this in many ways. The families that run here say it in few, and only those are known: anything
//! else is refused by its name, since a tokenizer that is nearly right gives a model that is nearly
//! right. Nothing here panics, and nothing makes much more text than it was given.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::decode::{DecoderKind, byte_token};
use crate::error::{Error, Result};

/// The most steps of a part.
const MAX_STEPS: usize = 16;

/// The longest text that a step puts in.
const MAX_CONTENT: usize = 256;

/// How much longer a text may become by one step: a space becomes three bytes.
const MAX_GROWTH: usize = 4;

/// The parts as the file says them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) decoder: Value,
}

/// The parts as they run.
pub(super) struct TextParts {
    pub(super) normalizer: Normalizer,
    pub(super) pre_tokenizer: PreTokenizer,
    pub(super) decoder: DecoderKind,
}

/// What is done with text before it is split.
#[derive(Debug, Default)]
pub(super) struct Normalizer(Vec<Normalize>);

#[derive(Debug)]
enum Normalize {
    Replace { from: String, to: String },
    Prepend(String),
}

/// Where text is split into words.
#[derive(Debug, Default)]
pub(super) struct PreTokenizer {
    /// A word ends with this.
    end: Option<String>,
}

/// A decoder that looks at the whole; without steps, tokens are joined by spaces.
#[derive(Debug)]
pub(super) struct Decoder(Option<Vec<Decode>>);

#[derive(Debug)]
enum Decode {
    Replace { from: String, to: String },
    ByteFallback,
    Fuse,
    Strip { content: char, start: usize, stop: usize },
}

impl Settings {
    /// Makes the parts.
    pub(super) fn text_parts(&self) -> Result<TextParts> {
        Ok(TextParts {
            normalizer: normalizer(&self.normalizer)?,
            pre_tokenizer: pre_tokenizer(&self.pre_tokenizer)?,
            decoder: decoder_kind(&self.decoder)?,
        })
    }
}

impl Normalizer {
    pub(super) fn normalize<'a>(&self, text: &'a str) -> Result<Cow<'a, str>> {
        let mut text = Cow::Borrowed(text);
        for step in &self.0 {
            let most = text.len().saturating_mul(MAX_GROWTH).saturating_add(MAX_CONTENT);
            let made = match step {
                Normalize::Prepend(_) if text.is_empty() => continue,
                Normalize::Prepend(before) => [before, &*text].concat(),
                Normalize::Replace { from, to } => {
                    let n = text.matches(from.as_str()).count();
                    if n == 0 {
                        continue;
                    }
                    let made = n.saturating_mul(to.len()).saturating_add(text.len());
                    if made.saturating_sub(n.saturating_mul(from.len())) > most {
                        return Err(invalid(format!(
                            "its normalizer makes {} bytes of text more than {MAX_GROWTH} times as \
                             long",
                            text.len()
                        )));
                    }
                    text.replace(from.as_str(), to)
                }
            };
            text = Cow::Owned(made);
        }
        Ok(text)
    }
}

impl PreTokenizer {
    /// The words of a text. What ends a word is part of it, unless it stands right after another
    /// such end.
    pub(super) fn words<'a>(&self, text: &'a str, mut take: impl FnMut(&'a str)) {
        let Some(end) = self.end.as_deref() else {
            take(text);
            return;
        };
        let (mut from, mut ended) = (0, 0);
        let mut give = |from: usize, to: usize| match text.get(from..to) {
            None | Some("") => {}
            Some(word) => take(word),
        };
        for (at, found) in text.match_indices(end) {
            let after = at.saturating_add(found.len());
            if at == ended && at > 0 {
                give(from, at);
                from = at;
            }
            give(from, after);
            (from, ended) = (after, after);
        }
        give(from, text.len());
    }
}

impl Decoder {
    /// The text of tokens.
    pub(super) fn decode(&self, mut tokens: Vec<String>) -> String {
        let Some(steps) = &self.0 else { return tokens.join(" ") };
        for step in steps {
            tokens = match step {
                Decode::Replace { from, to } => {
                    tokens.into_iter().map(|t| t.replace(from.as_str(), to)).collect()
                }
                Decode::ByteFallback => whole_bytes(tokens),
                Decode::Fuse => vec![tokens.concat()],
                Decode::Strip { content, start, stop } => {
                    tokens.iter().map(|t| strip(t, *content, *start, *stop)).collect()
                }
            };
        }
        tokens.concat()
    }
}

/// Runs of bytes as the text that they spell, or U+FFFD for each.
fn whole_bytes(tokens: Vec<String>) -> Vec<String> {
    let mut out = Vec::with_capacity(tokens.len());
    let mut bytes = Vec::new();
    let flush = |bytes: &mut Vec<u8>, out: &mut Vec<String>| {
        let n = bytes.len();
        match String::from_utf8(std::mem::take(bytes)) {
            Ok(text) if n > 0 => out.push(text),
            Ok(_) => {}
            Err(_) => out.push("\u{FFFD}".repeat(n)),
        }
    };
    for token in tokens {
        match byte_token(&token) {
            Some(byte) => bytes.push(byte),
            None => {
                flush(&mut bytes, &mut out);
                out.push(token);
            }
        }
    }
    flush(&mut bytes, &mut out);
    out
}

fn strip(token: &str, content: char, start: usize, stop: usize) -> String {
    let mut rest = token;
    for _ in 0..start {
        match rest.strip_prefix(content) {
            Some(after) => rest = after,
            None => break,
        }
    }
    for _ in 0..stop {
        match rest.strip_suffix(content) {
            Some(before) => rest = before,
            None => break,
        }
    }
    rest.to_string()
}

fn kind<'a>(part: &str, value: &'a Value) -> Result<&'a str> {
    let kind = value.get("type").and_then(Value::as_str);
    kind.ok_or_else(|| invalid(format!("its {part} has no type")))
}

fn unknown(part: &str, what: &str, known: &str) -> Error {
    let what: String = what.chars().take(40).collect();
    invalid(format!(
        "its {part} uses `{what}`, which no model that is known here does; it may be {known}"
    ))
}

/// The steps of a part: a `Sequence` of them, in sequences of sequences too, or one.
fn steps<'a>(part: &str, list: &str, value: &'a Value, into: &mut Vec<&'a Value>) -> Result<()> {
    // The file's nesting is bounded where it is read.
    if kind(part, value)? == "Sequence" {
        let all = value.get(list).and_then(Value::as_array);
        let all = all.ok_or_else(|| invalid(format!("its {part} is a sequence of nothing")))?;
        for value in all {
            steps(part, list, value, into)?;
        }
        return Ok(());
    }
    if into.len() == MAX_STEPS {
        return Err(invalid(format!("its {part} has more than {MAX_STEPS} steps")));
    }
    into.push(value);
    Ok(())
}

/// `from` and `to` of a `Replace`.
fn replace(part: &str, value: &Value) -> Result<(String, String)> {
    let Some(from) = value.pointer("/pattern/String").and_then(Value::as_str) else {
        return Err(unknown(part, "Replace with a Regex", "Replace with a String"));
    };
    Ok((from_text(part, from)?, content(part, value, "content")?))
}

fn from_text(part: &str, from: &str) -> Result<String> {
    match from.len() {
        0 => Err(invalid(format!("its {part} looks for an empty text"))),
        n if n > MAX_CONTENT => Err(invalid(format!("its {part} looks for {n} bytes"))),
        _ => Ok(from.to_owned()),
    }
}

fn content(part: &str, value: &Value, name: &str) -> Result<String> {
    match value.get(name).and_then(Value::as_str) {
        Some(text) if text.len() <= MAX_CONTENT => Ok(text.to_owned()),
        Some(text) => Err(invalid(format!("its {part} puts in {} bytes", text.len()))),
        None => Err(invalid(format!("its {part} has no `{name}`"))),
    }
}

fn normalizer(value: &Value) -> Result<Normalizer> {
    let mut found = Vec::new();
    if !value.is_null() {
        steps("normalizer", "normalizers", value, &mut found)?;
    }
    let made = found.into_iter().map(|step| match kind("normalizer", step)? {
        "Replace" => replace("normalizer", step).map(|(from, to)| Normalize::Replace { from, to }),
        "Prepend" => content("normalizer", step, "prepend").map(Normalize::Prepend),
        other => Err(unknown("normalizer", other, "Replace, Prepend and Sequence")),
    });
    made.collect::<Result<_>>().map(Normalizer)
}

fn pre_tokenizer(value: &Value) -> Result<PreTokenizer> {
    const PART: &str = "pre_tokenizer";
    if value.is_null() {
        return Ok(PreTokenizer::default());
    }
    match kind(PART, value)? {
        "Split" => {}
        other => return Err(unknown(PART, other, "Split")),
    }
    let Some(end) = value.pointer("/pattern/String").and_then(Value::as_str) else {
        return Err(unknown(PART, "Split at a Regex", "Split at a String"));
    };
    let behavior = value.get("behavior").and_then(Value::as_str).unwrap_or_default();
    if behavior != "MergedWithPrevious" {
        return Err(unknown(PART, behavior, "MergedWithPrevious"));
    }
    if value.get("invert").and_then(Value::as_bool) == Some(true) {
        return Err(unknown(PART, "invert", "Split without it"));
    }
    Ok(PreTokenizer { end: Some(from_text(PART, end)?) })
}

/// Recognises `Sequence[Replace, ByteFallback, Fuse]`, which maps each token to its bytes
/// independently; with other steps, or in another order, tokens are looked at together.
fn decoder_kind(value: &Value) -> Result<DecoderKind> {
    const PART: &str = "decoder";
    if value.is_null() {
        return Ok(DecoderKind::Joined(Decoder(None)));
    }
    let mut found = Vec::new();
    steps(PART, "decoders", value, &mut found)?;
    let made = found.into_iter().map(|step| match kind(PART, step)? {
        "Replace" => {
            let (from, to) = replace(PART, step)?;
            match to.len() <= from.len() {
                true => Ok(Decode::Replace { from, to }),
                false => Err(unknown(PART, "Replace by a longer text", "those by a shorter one")),
            }
        }
        "ByteFallback" => Ok(Decode::ByteFallback),
        "Fuse" => Ok(Decode::Fuse),
        "Strip" => {
            let content = content(PART, step, "content")?;
            let mut chars = content.chars();
            let (Some(content), None) = (chars.next(), chars.next()) else {
                return Err(invalid("its decoder strips something other than one character"));
            };
            let count = |name: &str| match step.get(name).and_then(Value::as_u64) {
                Some(n) => usize::try_from(n).map_err(|_| invalid("its decoder strips too much")),
                None => Err(invalid(format!("its decoder has no `{name}`"))),
            };
            Ok(Decode::Strip { content, start: count("start")?, stop: count("stop")? })
        }
        other => Err(unknown(PART, other, "Replace, ByteFallback, Fuse, Strip and Sequence")),
    });
    let mut made = made.collect::<Result<Vec<_>>>()?;
    if let [Decode::Replace { from, to }, Decode::ByteFallback, Decode::Fuse] = made.as_mut_slice()
    {
        return Ok(DecoderKind::Pieces { from: std::mem::take(from), to: std::mem::take(to) });
    }
    Ok(DecoderKind::Joined(Decoder(Some(made))))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Tokenizer(what.into())
}
