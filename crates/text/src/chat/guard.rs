//! Keeps user content from being read as control tokens.
//!
//! Before rendering, a guard character is put inside every piece of user text that spells a
//! special token, or that ends like the beginning of one (two parts may be joined by the
//! template). The tokenizer finds special tokens first and takes the guard out afterwards, so
//! guarded text is tokenised as if it had never been there. The guard is a noncharacter that
//! occurs nowhere in the request; it stands after a character of a token, never at an end that
//! is trimmed.
//!
//! One thing is left alone: markers in the assistant's own messages that the template itself looks
//! for (`content.split('</think>')`), since templates cut thoughts out of the history by them.
//! What stands between them is guarded piece by piece, so nothing can be assembled across them.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// A character that occurs nowhere in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard(char);

/// The variables of a template that come from the user.
pub(super) struct Guarded<'a> {
    pub(super) values: Vec<(String, Value)>,
    pub(super) markers: Markers<'a>,
}

/// Special tokens that the template looks for in what the assistant said.
pub(super) struct Markers<'a>(pub(super) Vec<&'a str>);

/// String literals that a template looks for in its variables.
pub(super) fn looked_for(source: &str) -> Vec<String> {
    const BEFORE: [&str; 5] = ["split(", "partition(", "find(", "startswith(", "endswith("];
    let mut found = Vec::new();
    for before in BEFORE {
        for (at, _) in source.match_indices(before) {
            let rest = source[at + before.len()..].trim_start();
            for quote in ['\'', '"'] {
                let literal = rest.strip_prefix(quote).and_then(|r| r.split_once(quote));
                found.extend(literal.map(|(l, _)| l.to_string()));
            }
        }
    }
    for (quote, after) in
        [('\'', "' in "), ('"', "\" in "), ('\'', "' not in "), ('"', "\" not in ")]
    {
        for (at, _) in source.match_indices(after) {
            let literal = source[..at].rsplit_once(quote);
            found.extend(literal.map(|(_, l)| l.to_string()));
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

impl Guard {
    /// The first noncharacter of U+FDD0…U+FDEF that `text` does not hold; `None` if it holds all.
    pub(crate) fn choose<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut used = [false; 32];
        for c in texts.flat_map(str::chars).filter(|c| ('\u{FDD0}'..='\u{FDEF}').contains(c)) {
            used[(c as u32 - 0xFDD0) as usize] = true;
        }
        let free = used.iter().position(|u| !u)?;
        char::from_u32(0xFDD0 + free as u32).map(Guard)
    }

    /// The character.
    pub(crate) fn char(self) -> char {
        self.0
    }

    /// The text with the guard after the first character of whatever may become a special token.
    pub(crate) fn protect(self, text: &str, tokenizer: &Tokenizer) -> Option<String> {
        let mut cuts: Vec<usize> = Vec::new();
        let step = |at: usize| at + text[at..].chars().next().map_or(1, char::len_utf8);
        let mut from = 0;
        // From after the first character, not from after the match: matches may overlap.
        while let Some(at) = tokenizer.find_special(text, from) {
            from = step(at);
            cuts.push(from);
        }
        let end = text.trim_end();
        let longest = tokenizer.specials().map(|(s, _)| s.len()).max().unwrap_or(0);
        for (at, _) in end.char_indices().rev().take_while(|(at, _)| end.len() - at < longest) {
            if tokenizer.specials().any(|(s, _)| s.starts_with(&end[at..])) {
                cuts.push(step(at));
            }
        }
        if cuts.is_empty() {
            return None;
        }
        cuts.sort_unstable();
        cuts.dedup();
        let mut out = String::with_capacity(text.len() + cuts.len() * self.0.len_utf8());
        let mut from = 0;
        for cut in cuts {
            out.push_str(&text[from..cut]);
            out.push(self.0);
            from = cut;
        }
        out.push_str(&text[from..]);
        Some(out)
    }
}

impl Guarded<'_> {
    /// Guards every string in the values, keys included.
    pub(super) fn protect(&mut self, tokenizer: &Tokenizer) -> Result<Guard> {
        let mut texts = Vec::new();
        for (_, value) in &self.values {
            collect(value, &mut texts);
        }
        let guard = Guard::choose(texts.into_iter()).ok_or_else(|| {
            Error::param("messages", "the text holds all noncharacters from U+FDD0 to U+FDEF")
        })?;
        for (name, value) in &mut self.values {
            match value {
                Value::Array(messages) if name == "messages" => {
                    messages.iter_mut().for_each(|m| self.markers.protect(m, guard, tokenizer));
                }
                other => protect(other, guard, &[], tokenizer),
            }
        }
        Ok(guard)
    }
}

impl Markers<'_> {
    fn protect(&self, message: &mut Value, guard: Guard, tokenizer: &Tokenizer) {
        let own = message["role"] == "assistant";
        let content = message.as_object_mut().and_then(|m| m.remove("content"));
        protect(message, guard, &[], tokenizer);
        if let Some(mut content) = content {
            protect(&mut content, guard, if own { &self.0 } else { &[] }, tokenizer);
            message["content"] = content;
        }
    }
}

fn collect<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::String(s) => out.push(s),
        Value::Array(items) => items.iter().for_each(|v| collect(v, out)),
        Value::Object(map) => {
            for (key, v) in map {
                out.push(key);
                collect(v, out);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn protect(value: &mut Value, guard: Guard, markers: &[&str], tokenizer: &Tokenizer) {
    match value {
        Value::String(s) => {
            if let Some(guarded) = between(s, guard, markers, tokenizer) {
                *s = guarded;
            }
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|v| protect(v, guard, markers, tokenizer));
        }
        Value::Object(map) => {
            let old = std::mem::take(map);
            map.extend(old.into_iter().map(|(key, mut v)| {
                protect(&mut v, guard, markers, tokenizer);
                (guard.protect(&key, tokenizer).unwrap_or(key), v)
            }));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Guards what stands between markers.
fn between(text: &str, guard: Guard, markers: &[&str], tokenizer: &Tokenizer) -> Option<String> {
    let next = |text: &str| {
        let found = markers.iter().filter_map(|m| text.find(m).map(|at| (at, m.len())));
        found.min_by_key(|(at, len)| (*at, std::cmp::Reverse(*len)))
    };
    if next(text).is_none() {
        return guard.protect(text, tokenizer);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    loop {
        let (at, len) = next(rest).unwrap_or((rest.len(), 0));
        let (piece, after) = rest.split_at(at);
        match guard.protect(piece, tokenizer) {
            Some(guarded) => out.push_str(&guarded),
            None => out.push_str(piece),
        }
        if len == 0 {
            return Some(out);
        }
        let (marker, after) = after.split_at(len);
        out.push_str(marker);
        rest = after;
    }
}
