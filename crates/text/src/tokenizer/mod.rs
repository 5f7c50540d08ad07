//! Text to tokens and back, over the tokenizer that the program carries.
//!
//! Special tokens are kept apart from the rest. So user text that looks like a control token is
//! ordinary text in every path; only [`Tokenizer::encode_template`] turns special text into control
//! tokens, and [chat rendering](crate::ChatTemplate::render) guards user content before it gets
//! there.

mod added;
mod bpe;
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod compiled;
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
mod kept;
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod settings;
mod table;
mod vocab;

use std::sync::Arc;

pub use decode::StreamDecoder;
pub use kept::{CacheUse, load_tokenizer, load_tokenizer_cached, load_tokenizer_kept};

use crate::error::{Error, Result};
use added::{Added, AddedTokens, Segment};
use bpe::Bpe;
use decode::Pieces;
use settings::{Normalizer, PreTokenizer, Settings, TextParts};
use vocab::Vocab;

/// A program's tokenizer.
pub struct Tokenizer {
    vocab: Arc<Vocab>,
    bpe: Bpe,
    normalizer: Normalizer,
    pre_tokenizer: PreTokenizer,
    /// Added tokens that are part of ordinary text, such as runs of newlines.
    ordinary: AddedTokens,
    /// Control tokens.
    specials: AddedTokens,
    pieces: Arc<Pieces>,
    unk_id: Option<u32>,
    vocab_size: u32,
}

/// How often text that spells a special token is taken apart again: more than any such token has
/// others inside.
const MAX_DEPTH: u32 = 64;

/// What a tokenizer is made of, read from one file or another and checked.
struct Parts {
    vocab: Vocab,
    bpe: Bpe,
    settings: Settings,
    added: Vec<Added>,
    unk_id: Option<u32>,
}

impl Tokenizer {
    /// Reads a Hugging Face `tokenizer.json` for a model with `vocab_size` output rows.
    ///
    /// The bytes are untrusted. Every id that plain text can give must be below `vocab_size`.
    /// A special token may be above it (a placeholder that a text-only export does not have);
    /// it is an error only when a template uses it.
    pub fn from_json(bytes: &[u8], vocab_size: u32) -> Result<Self> {
        Self::of_parts(json::read(bytes, vocab_size)?, vocab_size)
    }

    fn of_parts(parts: Parts, vocab_size: u32) -> Result<Self> {
        let Parts { vocab, bpe, settings, added, unk_id } = parts;
        let TextParts { normalizer, pre_tokenizer, decoder } = settings.text_parts()?;
        let (specials, ordinary) = added.into_iter().partition(|token| token.special);
        let (specials, ordinary) = (AddedTokens::new(specials)?, AddedTokens::new(ordinary)?);
        let vocab = Arc::new(vocab);
        let pieces = Arc::new(Pieces::new(vocab.clone(), &specials, decoder));
        Ok(Tokenizer {
            vocab,
            bpe,
            normalizer,
            pre_tokenizer,
            ordinary,
            specials,
            pieces,
            unk_id,
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
        self.specials.split(rendered, |segment| match segment {
            Segment::Text(text) => match guard {
                Some(g) if text.contains(g) => self.encode_plain(&text.replace(g, ""), &mut ids),
                _ => self.encode_plain(text, &mut ids),
            },
            Segment::Token(token) if token.id >= self.vocab_size => {
                Err(Error::TokenId { id: token.id, vocab_size: self.vocab_size })
            }
            Segment::Token(token) => {
                ids.push(token.id);
                Ok(())
            }
        })?;
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
    pub fn token(&self, id: u32) -> Option<&str> {
        Some(self.vocab.get(id)).filter(|t| !t.is_empty())
    }

    /// The id of a token by its own spelling. Looks at all tokens: not for loops.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.vocab.find(token)
    }

    /// The id of the token that was added under this spelling, special or not.
    pub(crate) fn added_id(&self, spelling: &str) -> Option<u32> {
        let mut added = self.specials.tokens().iter().chain(self.ordinary.tokens());
        added.find(|t| t.content == spelling).map(|t| t.id)
    }

    /// Whether the token is special: control, not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.get(id).is_some()
    }

    /// Spellings and ids of all special tokens, by id.
    pub fn specials(&self) -> impl Iterator<Item = (&str, u32)> {
        self.specials.tokens().iter().map(|s| (s.content.as_str(), s.id))
    }

    /// Ids are below this.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The bytes that an ordinary token adds to the text; `None` if that depends on its neighbours.
    pub(crate) fn piece(&self, id: u32) -> Option<Vec<u8>> {
        self.pieces.piece(id)
    }

    /// The token for what the vocabulary can't spell.
    pub fn unk_id(&self) -> Option<u32> {
        self.unk_id
    }

    /// The first place from byte `from` on where `text` spells a special token.
    pub(crate) fn find_special(&self, text: &str, from: usize) -> Option<usize> {
        self.specials.find(text, from)
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        self.ordinary.split(text, |segment| match segment {
            Segment::Text(text) => self.encode_words(text, ids, 0),
            Segment::Token(token) => {
                ids.push(token.id);
                Ok(())
            }
        })
    }

    /// Normalises, splits into words, and merges each. `depth` counts how often the text was taken
    /// apart before.
    fn encode_words(&self, text: &str, ids: &mut Vec<u32>, depth: u32) -> Result<()> {
        let normalized = self.normalizer.normalize(text)?;
        let from = ids.len();
        self.pre_tokenizer.words(&normalized, |word| self.bpe.encode(word, &self.vocab, ids));
        self.break_up_specials(from, ids, depth)
    }

    /// Merges can spell a special token in some vocabularies; spelled by plain text it is plain
    /// text, so it is taken apart again.
    fn break_up_specials(&self, from: usize, ids: &mut Vec<u32>, depth: u32) -> Result<()> {
        let spelled = |id: u32| self.is_special(id) && Some(id) != self.unk_id;
        if !ids[from..].iter().any(|id| spelled(*id)) {
            return Ok(());
        }
        for id in ids.split_off(from) {
            let Some(special) = self.specials.get(id).filter(|_| spelled(id)) else {
                ids.push(id);
                continue;
            };
            let content = special.content.as_str();
            let first = content.chars().next().map_or(0, char::len_utf8);
            if first == content.len() || depth == MAX_DEPTH {
                return Err(Error::Tokenizer(format!(
                    "special token {id} can't be told from the text `{content}`"
                )));
            }
            self.encode_words(&content[..first], ids, depth + 1)?;
            self.encode_words(&content[first..], ids, depth + 1)?;
        }
        Ok(())
    }
}
