//! Text to tokens and back, over the tokenizer that the program carries.
//!
//! Special tokens are kept apart from the tokenizer proper, which never sees them. So user text
//! that looks like a control token is ordinary text in every path; only
//! [`Tokenizer::encode_template`] turns special text into control tokens, and chat rendering
//! [guards](crate::Guard) user content before it gets there.

mod decode;
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod json;

use std::sync::Arc;

use aho_corasick::AhoCorasick;

pub use decode::StreamDecoder;

use crate::error::{Error, Result};
use decode::Pieces;

/// A program's tokenizer.
pub struct Tokenizer {
    /// Knows the vocabulary, the merges and the ordinary added tokens, but no special token.
    plain: tokenizers::Tokenizer,
    /// By id.
    specials: Vec<Special>,
    /// Over the contents of `specials`, leftmost-longest; `None` if there are none.
    matcher: Option<AhoCorasick>,
    pieces: Arc<Pieces>,
    unk_id: Option<u32>,
    vocab_size: u32,
}

/// A special added token.
#[derive(Clone, Debug)]
struct Special {
    id: u32,
    content: String,
    lstrip: bool,
    rstrip: bool,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json` for a model with `vocab_size` output rows.
    ///
    /// The bytes are untrusted. Every id that plain text can give must be below `vocab_size`.
    /// A special token may be above it (a placeholder that a text-only export does not have);
    /// it is an error only when a template uses it.
    pub fn from_json(bytes: &[u8], vocab_size: u32) -> Result<Self> {
        let parts = json::read(bytes, vocab_size)?;
        let contents = parts.specials.iter().map(|s| s.content.as_bytes());
        let matcher = (!parts.specials.is_empty())
            .then(|| {
                AhoCorasick::builder()
                    .match_kind(aho_corasick::MatchKind::LeftmostLongest)
                    .build(contents)
                    .map_err(|e| Error::Tokenizer(e.to_string()))
            })
            .transpose()?;
        Ok(Tokenizer {
            plain: parts.plain,
            specials: parts.specials,
            matcher,
            pieces: Arc::new(parts.pieces),
            unk_id: parts.unk_id,
            vocab_size,
        })
    }

    /// Tokens of plain text. Text that looks like a special token is text. No `bos` is added.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.encode_plain(text, &mut ids)?;
        Ok(ids)
    }

    /// Tokens of rendered template text: special tokens are parsed, all else is plain text in one
    /// piece between them. `guard` is taken out after special tokens were found, so that what it
    /// stands in is plain text.
    pub fn encode_template(&self, rendered: &str, guard: Option<char>) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = 0;
        let mut strip_left = false;
        let plain = |text: &str, left: bool, right: bool, ids: &mut Vec<u32>| {
            let text = if left { text.trim_start() } else { text };
            let text = if right { text.trim_end() } else { text };
            match guard {
                Some(g) if text.contains(g) => self.encode_plain(&text.replace(g, ""), ids),
                _ => self.encode_plain(text, ids),
            }
        };
        for found in self.matcher.iter().flat_map(|m| m.find_iter(rendered)) {
            let special = &self.specials[found.pattern().as_usize()];
            plain(&rendered[rest..found.start()], strip_left, special.lstrip, &mut ids)?;
            if special.id >= self.vocab_size {
                return Err(Error::TokenId { id: special.id, vocab_size: self.vocab_size });
            }
            ids.push(special.id);
            (rest, strip_left) = (found.end(), special.rstrip);
        }
        plain(&rendered[rest..], strip_left, false, &mut ids)?;
        Ok(ids)
    }

    /// The text of tokens, special tokens left out or kept. The same as a [`StreamDecoder`] makes.
    pub fn decode(&self, ids: &[u32], keep_special: bool) -> String {
        let mut text = String::new();
        let mut decoder = self.stream(keep_special);
        for id in ids {
            decoder.push(*id, &mut text);
        }
        decoder.flush(&mut text);
        text
    }

    /// A decoder that takes one token at a time.
    pub fn stream(&self, keep_special: bool) -> StreamDecoder {
        StreamDecoder::new(self.pieces.clone(), keep_special)
    }

    /// The token's own spelling (`▁the`, `<0x0A>`, `<bos>`), if there is such a token.
    pub fn token(&self, id: u32) -> Option<String> {
        match self.specials.binary_search_by_key(&id, |s| s.id) {
            Ok(i) => Some(self.specials[i].content.clone()),
            Err(_) => self.plain.id_to_token(id),
        }
    }

    /// The id of a token by its own spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        match self.specials.iter().find(|s| s.content == token) {
            Some(s) => Some(s.id),
            None => self.plain.token_to_id(token),
        }
    }

    /// Whether the token is special: control, not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.binary_search_by_key(&id, |s| s.id).is_ok()
    }

    /// Spellings and ids of all special tokens, by id.
    pub fn specials(&self) -> impl Iterator<Item = (&str, u32)> {
        self.specials.iter().map(|s| (s.content.as_str(), s.id))
    }

    /// The token for what the vocabulary can't spell.
    pub fn unk_id(&self) -> Option<u32> {
        self.unk_id
    }

    /// Whether `text` is exactly a special token's.
    pub(crate) fn spells_special(&self, text: &str) -> bool {
        self.specials.iter().any(|s| s.content == text)
    }

    /// The first place from byte `from` on where `text` spells a special token.
    pub(crate) fn find_special(&self, text: &str, from: usize) -> Option<usize> {
        let input = aho_corasick::Input::new(text).range(from..);
        self.matcher.as_ref()?.find(input).map(|m| m.start())
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding = self
            .plain
            .encode_fast(text, false)
            .map_err(|e| Error::Tokenizer(format!("it can't encode this text: {e}")))?;
        for &id in encoding.get_ids() {
            match self.specials.binary_search_by_key(&id, |s| s.id) {
                // Merges can spell a special token in some vocabularies; spelled by plain text it
                // is plain text, so it is taken apart again.
                Ok(i) if Some(id) != self.unk_id => {
                    let content = &self.specials[i].content;
                    let first = content.chars().next().map_or(0, char::len_utf8);
                    if first == content.len() {
                        return Err(Error::Tokenizer(format!(
                            "special token {id} can't be told from the text `{content}`"
                        )));
                    }
                    self.encode_plain(&content[..first], ids)?;
                    self.encode_plain(&content[first..], ids)?;
                }
                _ => ids.push(id),
            }
        }
        Ok(())
    }
}
