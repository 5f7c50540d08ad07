//! Added tokens: found in text before anything else looks at it.

use aho_corasick::{AhoCorasick, Input, MatchKind};

use crate::error::{Error, Result};

/// One added token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    /// Whether it takes the white space before it.
    pub(super) lstrip: bool,
    /// Whether it takes the white space after it.
    pub(super) rstrip: bool,
    /// Whether it is control, not text.
    pub(super) special: bool,
}

/// Some added tokens, by id, and the search for them: leftmost, then longest.
pub(super) struct AddedTokens {
    tokens: Vec<Added>,
    matcher: Option<AhoCorasick>,
}

/// Text between added tokens, or one of them.
pub(super) enum Segment<'a> {
    Text(&'a str),
    Token(&'a Added),
}

impl AddedTokens {
    pub(super) fn new(mut tokens: Vec<Added>) -> Result<Self> {
        tokens.sort_by_key(|t| t.id);
        tokens.dedup_by_key(|t| t.id);
        let matcher = match tokens.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .build(tokens.iter().map(|t| t.content.as_bytes()))
                    .map_err(|e| Error::Tokenizer(format!("added tokens: {e}")))?,
            ),
        };
        Ok(AddedTokens { tokens, matcher })
    }

    /// By id.
    pub(super) fn tokens(&self) -> &[Added] {
        &self.tokens
    }

    pub(super) fn get(&self, id: u32) -> Option<&Added> {
        self.tokens.binary_search_by_key(&id, |t| t.id).ok().map(|i| &self.tokens[i])
    }

    /// The first place from byte `from` on where `text` spells one.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<usize> {
        self.matcher.as_ref()?.find(Input::new(text).range(from..)).map(|m| m.start())
    }

    /// Takes text apart, in order.
    pub(super) fn split<'a>(
        &'a self,
        text: &'a str,
        mut take: impl FnMut(Segment<'a>) -> Result<()>,
    ) -> Result<()> {
        let mut from = 0;
        let mut strip_start = false;
        let piece =
            |from: usize, to: usize, start: bool, end: bool, take: &mut dyn FnMut(_) -> _| {
                let text = &text[from..to];
                let text = if start { text.trim_start() } else { text };
                let text = if end { text.trim_end() } else { text };
                if text.is_empty() { Ok(()) } else { take(Segment::Text(text)) }
            };
        for found in self.matcher.iter().flat_map(|m| m.find_iter(text)) {
            let token = &self.tokens[found.pattern().as_usize()];
            piece(from, found.start(), strip_start, token.lstrip, &mut take)?;
            take(Segment::Token(token))?;
            (from, strip_start) = (found.end(), token.rstrip);
        }
        piece(from, text.len(), strip_start, false, &mut take)
    }
}
