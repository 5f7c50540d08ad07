//! Where thinking and tool calls begin and end in a stream of characters and marker tokens.

use std::collections::VecDeque;

use lapidary_program::{AnswerFormat, CallSyntax};

use crate::tokenizer::Tokenizer;

/// What a stream is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Char(char),
    /// A token that spells a whole marker, by its number among the markers' tokens.
    Token(usize),
}

/// What a marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    ThinkOpen,
    ThinkClose,
    CallOpen,
    CallClose,
    Quote,
}

/// What the beginning of the held symbols is.
pub(super) enum Front {
    /// A marker, the `n`th.
    Whole(usize),
    /// Perhaps the beginning of one.
    Open,
    /// No marker that may stand here.
    Plain,
}

/// All markers of a format.
#[derive(Debug, Default)]
pub(super) struct Markers {
    markers: Vec<Marker>,
    tokens: Vec<MarkerToken>,
}

#[derive(Debug)]
struct Marker {
    mark: Mark,
    symbols: Vec<Symbol>,
    spelling: String,
}

#[derive(Debug)]
struct MarkerToken {
    id: u32,
    spelling: String,
}

impl Markers {
    /// The markers of a format. One that the tokenizer has a token for is that token; others, and
    /// all without a tokenizer, are known by their letters.
    pub(super) fn new(format: &AnswerFormat, tokenizer: Option<&Tokenizer>) -> Self {
        let mut markers = Markers::default();
        if let Some(t) = &format.thinking {
            markers.add(Mark::ThinkOpen, "", &t.open, tokenizer);
            if !t.footer.is_empty() {
                markers.add(Mark::ThinkClose, &t.footer, &t.close, tokenizer);
            }
            markers.add(Mark::ThinkClose, "", &t.close, tokenizer);
        }
        if let Some(c) = &format.calls {
            markers.add(Mark::CallOpen, "", &c.open, tokenizer);
            markers.add(Mark::CallClose, "", &c.close, tokenizer);
            if let CallSyntax::Braces { quote, .. } = &c.syntax {
                markers.add(Mark::Quote, "", quote, tokenizer);
            }
        }
        markers
    }

    fn add(&mut self, mark: Mark, before: &str, text: &str, tokenizer: Option<&Tokenizer>) {
        let mut symbols: Vec<Symbol> = before.chars().map(Symbol::Char).collect();
        match tokenizer.and_then(|t| t.added_id(text)) {
            Some(id) => {
                let known = self.tokens.iter().position(|t| t.id == id);
                let number = known.unwrap_or(self.tokens.len());
                if known.is_none() {
                    self.tokens.push(MarkerToken { id, spelling: text.to_string() });
                }
                symbols.push(Symbol::Token(number));
            }
            None => symbols.extend(text.chars().map(Symbol::Char)),
        }
        self.markers.push(Marker { mark, symbols, spelling: format!("{before}{text}") });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.markers.is_empty()
    }

    /// The symbol of a token that spells a marker.
    pub(super) fn token(&self, id: u32) -> Option<Symbol> {
        self.tokens.iter().position(|t| t.id == id).map(Symbol::Token)
    }

    /// The id of the token that alone is a marker of this kind.
    pub(super) fn token_of(&self, mark: Mark) -> Option<u32> {
        let alone = |m: &&Marker| m.mark == mark && m.symbols.len() == 1;
        match self.markers.iter().find(alone)?.symbols.first()? {
            Symbol::Token(n) => self.tokens.get(*n).map(|t| t.id),
            Symbol::Char(_) => None,
        }
    }

    /// Appends what a symbol spells.
    pub(super) fn spell(&self, symbol: Symbol, out: &mut String) {
        match symbol {
            Symbol::Char(c) => out.push(c),
            Symbol::Token(n) => out.push_str(self.tokens.get(n).map_or("", |t| &t.spelling)),
        }
    }

    /// What stands first in `held`, if only some marks may stand here.
    pub(super) fn front(&self, held: &VecDeque<Symbol>, may: impl Fn(Mark) -> bool) -> Front {
        let mut open = false;
        for (n, marker) in self.markers.iter().enumerate() {
            if !may(marker.mark) || marker.symbols.iter().zip(held).any(|(a, b)| a != b) {
                continue;
            }
            if marker.symbols.len() <= held.len() {
                return Front::Whole(n);
            }
            open = true;
        }
        if open { Front::Open } else { Front::Plain }
    }

    /// What the `n`th marker says, how many symbols it has, and how it is spelled.
    pub(super) fn marker(&self, n: usize) -> Option<(Mark, usize, &str)> {
        self.markers.get(n).map(|m| (m.mark, m.symbols.len(), m.spelling.as_str()))
    }
}
