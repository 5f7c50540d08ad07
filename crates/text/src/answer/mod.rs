//! Answers as they come: what of them is text, what is thinking, and what calls tools.
//!
//! The [`AnswerParser`] takes tokens, so that a marker is told from letters that look like one. What
//! it gives, joined, does not depend on how the stream was cut. What can't be read as the format says
//! comes back as text; nothing is lost.

mod braces;
mod code;
mod collected;
mod markers;

use std::collections::VecDeque;
use std::sync::Arc;

use lapidary_program::{AnswerFormat, CallSyntax};
use serde_json::Value;

pub use collected::{Answer, Call};

use crate::tokenizer::{StreamDecoder, Tokenizer};
use braces::{Braces, Input};
use markers::{Front, Mark, Markers, Symbol};

/// The longest call, in bytes of what the model wrote.
const MAX_CALL: usize = 1 << 20;

/// The next piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// Text for the user.
    Text(&'a str),
    /// What the model thinks.
    Thinking(&'a str),
    /// Something about a call of a tool.
    Call(CallDelta<'a>),
}

/// The next piece of a call. Calls are numbered from 0.
///
/// A call begins, its arguments grow, and it ends; one that is wrong fails instead, and all that was
/// written of it follows as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallDelta<'a> {
    /// A call begins.
    Begin {
        /// Which.
        index: usize,
        /// The tool's name.
        name: &'a str,
    },
    /// More of the arguments' JSON.
    Arguments {
        /// Which.
        index: usize,
        /// What is added.
        json: &'a str,
    },
    /// The call is whole.
    End {
        /// Which.
        index: usize,
        /// The tool's name.
        name: &'a str,
        /// All of the arguments, a JSON object.
        arguments: &'a str,
        /// What the model wrote, markers spelled out. Empty for further calls of the same block.
        raw: &'a str,
    },
    /// It was none.
    Failed {
        /// Which.
        index: usize,
    },
}

/// Reads an answer while it is made. A clone goes on from the same place.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    format: Arc<Format>,
    /// `None` if text is pushed instead of tokens.
    decoder: Option<StreamDecoder>,
    /// Symbols that may be the beginning of a marker.
    held: VecDeque<Symbol>,
    state: State,
    shown: Shown,
    call: OpenCall,
    n_calls: usize,
    /// Scratch: what the decoder gave.
    decoded: String,
}

/// A format, ready to be looked for.
#[derive(Debug, Default)]
struct Format {
    markers: Markers,
    /// What may follow the marker that begins thinking.
    header: String,
    syntax: Option<CallSyntax>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// The header's first bytes have come.
    Header(usize),
    Thinking,
    Call,
}

/// Text that was not given yet.
#[derive(Clone, Debug, Default)]
struct Shown {
    thinking: bool,
    text: String,
}

/// The call that is being read.
#[derive(Clone, Debug, Default)]
struct OpenCall {
    raw: String,
    braces: Braces,
    /// For other forms: what stands between the markers.
    code: String,
    /// Whether it was said that it begins, and how much of its arguments was given.
    begun: bool,
    given: usize,
}

type Sink<'s> = &'s mut dyn FnMut(Delta<'_>);

impl AnswerParser {
    /// A parser of tokens; without a format, all is text. Special tokens that are no markers are
    /// left out, or spelled out if `keep_special`.
    pub fn new(format: Option<&AnswerFormat>, tokenizer: &Tokenizer, keep_special: bool) -> Self {
        let decoder = Some(tokenizer.stream(keep_special));
        Self::with(format.map(|f| Format::new(f, Some(tokenizer))).unwrap_or_default(), decoder)
    }

    /// A parser of text in which markers are spelled out.
    pub fn of_text(format: &AnswerFormat) -> Self {
        Self::with(Format::new(format, None), None)
    }

    fn with(format: Format, decoder: Option<StreamDecoder>) -> Self {
        AnswerParser {
            format: Arc::new(format),
            decoder,
            held: VecDeque::with_capacity(64),
            state: State::Text,
            shown: Shown { thinking: false, text: String::with_capacity(256) },
            call: OpenCall::default(),
            n_calls: 0,
            decoded: String::with_capacity(256),
        }
    }

    /// The same for an answer to a prompt that may end inside of a thought.
    pub fn after(mut self, prompt: &[u32], tokenizer: &Tokenizer) -> Self {
        let Some(open) = self.format.markers.token_of(Mark::ThinkOpen) else { return self };
        let Ok(header) = tokenizer.encode_text(&self.format.header) else { return self };
        if prompt.strip_suffix(header.as_slice()).is_some_and(|p| p.last() == Some(&open)) {
            self.state = State::Thinking;
        } else if prompt.last() == Some(&open) {
            self.state = State::Header(0);
        }
        self
    }

    /// Whether what comes next is part of a thought.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Header(_) | State::Thinking)
    }

    /// Takes a token.
    pub fn push(&mut self, id: u32, out: &mut dyn FnMut(Delta<'_>)) {
        let marker = self.format.markers.token(id);
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        match (&mut self.decoder, marker) {
            // A character can't go on after a marker.
            (Some(decoder), Some(_)) => decoder.flush(&mut decoded),
            (Some(decoder), None) => decoder.push(id, &mut decoded),
            (None, _) => {}
        }
        self.take(&decoded, out);
        self.decoded = decoded;
        if let Some(symbol) = marker {
            self.symbol(symbol, out);
        }
        self.give(out);
    }

    /// Takes text.
    pub fn push_text(&mut self, text: &str, out: &mut dyn FnMut(Delta<'_>)) {
        self.take(text, out);
        self.give(out);
    }

    /// Gives what was held back: nothing more will come. A call that is not whole is text.
    pub fn finish(&mut self, out: &mut dyn FnMut(Delta<'_>)) {
        let mut decoded = std::mem::take(&mut self.decoded);
        decoded.clear();
        if let Some(decoder) = &mut self.decoder {
            decoder.flush(&mut decoded);
        }
        self.take(&decoded, out);
        self.decoded = decoded;
        while let Some(symbol) = self.held.pop_front() {
            self.plain(symbol, out);
            self.settle(out);
        }
        match self.state {
            State::Call => self.fail(out),
            State::Header(n) => self.end_header(n, out),
            State::Text | State::Thinking => {}
        }
        self.give(out);
        self.state = State::Text;
    }

    fn take(&mut self, text: &str, out: Sink<'_>) {
        if self.format.markers.is_empty() {
            self.shown.text.push_str(text);
            return;
        }
        for c in text.chars() {
            self.symbol(Symbol::Char(c), out);
        }
    }

    fn symbol(&mut self, symbol: Symbol, out: Sink<'_>) {
        self.held.push_back(symbol);
        self.settle(out);
    }

    /// Passes on what is certain.
    fn settle(&mut self, out: Sink<'_>) {
        while !self.held.is_empty() {
            let format = self.format.clone();
            match format.markers.front(&self.held, |mark| self.may_stand(mark)) {
                Front::Open => return,
                Front::Whole(n) => {
                    let Some((mark, len, spelling)) = format.markers.marker(n) else { return };
                    self.held.drain(..len.min(self.held.len()));
                    self.mark(mark, spelling, out);
                }
                Front::Plain => {
                    if let Some(symbol) = self.held.pop_front() {
                        self.plain(symbol, out);
                    }
                }
            }
        }
    }

    fn may_stand(&self, mark: Mark) -> bool {
        match (self.state, mark) {
            (State::Text, Mark::ThinkOpen | Mark::CallOpen) => true,
            // Nobody writes the marker of a call by chance: the thought was left open.
            (State::Header(_) | State::Thinking, Mark::ThinkClose | Mark::CallOpen) => true,
            (State::Call, Mark::Quote) => true,
            (State::Call, Mark::CallClose) => !self.call.braces.in_string(),
            _ => false,
        }
    }

    fn mark(&mut self, mark: Mark, spelling: &str, out: Sink<'_>) {
        match mark {
            Mark::ThinkOpen => self.state = State::Header(0),
            Mark::ThinkClose => {
                if let State::Header(n) = self.state {
                    self.end_header(n, out);
                }
                self.state = State::Text;
            }
            Mark::CallOpen => {
                if let State::Header(n) = self.state {
                    self.end_header(n, out);
                }
                self.call.begin(spelling);
                self.state = State::Call;
            }
            Mark::Quote => self.call_part(Input::Quote, spelling, out),
            Mark::CallClose => {
                self.call.raw.push_str(spelling);
                self.end_call(out);
            }
        }
    }

    /// A symbol that belongs to no marker.
    fn plain(&mut self, symbol: Symbol, out: Sink<'_>) {
        let format = self.format.clone();
        match (self.state, symbol) {
            (State::Text, _) => self.show(false, symbol, out),
            (State::Thinking, _) => self.show(true, symbol, out),
            (State::Header(n), _) => {
                let next = format.header.get(n..).and_then(|left| left.chars().next());
                match (symbol, next) {
                    (Symbol::Char(c), Some(next)) if c == next => {
                        let n = n.saturating_add(c.len_utf8());
                        let whole = n >= format.header.len();
                        self.state = if whole { State::Thinking } else { State::Header(n) };
                    }
                    _ => {
                        self.show_header(n, out);
                        self.state = State::Thinking;
                        self.show(true, symbol, out);
                    }
                }
            }
            (State::Call, Symbol::Char(c)) => {
                self.call_part(Input::Char(c), c.encode_utf8(&mut [0; 4]), out);
            }
            (State::Call, Symbol::Token(_)) => {
                format.markers.spell(symbol, &mut self.call.raw);
                self.fail(out);
            }
        }
    }

    /// The header was cut short: it is a header if only space is missing, else a thought.
    fn end_header(&mut self, n: usize, out: Sink<'_>) {
        if self.format.header.get(n..).is_some_and(|left| !left.trim().is_empty()) {
            self.show_header(n, out);
        }
    }

    fn show_header(&mut self, n: usize, out: Sink<'_>) {
        let format = self.format.clone();
        for c in format.header.get(..n).unwrap_or_default().chars() {
            self.show(true, Symbol::Char(c), out);
        }
    }

    fn show(&mut self, thinking: bool, symbol: Symbol, out: Sink<'_>) {
        if self.shown.thinking != thinking {
            self.shown.give(out);
            self.shown.thinking = thinking;
        }
        self.format.markers.spell(symbol, &mut self.shown.text);
    }

    fn call_part(&mut self, input: Input, spelling: &str, out: Sink<'_>) {
        self.call.raw.push_str(spelling);
        if self.call.raw.len() > MAX_CALL {
            return self.fail(out);
        }
        let format = self.format.clone();
        match &format.syntax {
            Some(CallSyntax::Braces { prefix, .. }) => {
                if self.call.braces.push(input, prefix).is_err() {
                    return self.fail(out);
                }
                if !self.call.begun
                    && let Some(name) = self.call.braces.name()
                {
                    self.shown.give(out);
                    out(Delta::Call(CallDelta::Begin { index: self.n_calls, name }));
                    self.call.begun = true;
                }
            }
            Some(CallSyntax::Code) | None => self.call.code.push_str(spelling),
        }
    }

    fn end_call(&mut self, out: Sink<'_>) {
        let format = self.format.clone();
        self.shown.give(out);
        match &format.syntax {
            Some(CallSyntax::Braces { .. }) => {
                if !self.call.braces.is_whole() {
                    return self.fail(out);
                }
                self.call.give(self.n_calls, out);
                let (index, name) = (self.n_calls, self.call.braces.name().unwrap_or_default());
                let (arguments, raw) = (self.call.braces.json(), self.call.raw.as_str());
                out(Delta::Call(CallDelta::End { index, name, arguments, raw }));
                self.n_calls = self.n_calls.saturating_add(1);
            }
            Some(CallSyntax::Code) | None => {
                let Some(calls) = code::calls(&self.call.code) else { return self.fail(out) };
                let mut raw = self.call.raw.as_str();
                for (name, arguments) in calls {
                    let (index, name) = (self.n_calls, name.as_str());
                    let json = Value::Object(arguments).to_string();
                    let arguments = json.as_str();
                    out(Delta::Call(CallDelta::Begin { index, name }));
                    out(Delta::Call(CallDelta::Arguments { index, json: arguments }));
                    out(Delta::Call(CallDelta::End { index, name, arguments, raw }));
                    raw = "";
                    self.n_calls = self.n_calls.saturating_add(1);
                }
            }
        }
        self.state = State::Text;
    }

    /// It is no call: what was written of it is text.
    fn fail(&mut self, out: Sink<'_>) {
        self.state = State::Text;
        self.shown.give(out);
        if self.call.begun {
            self.call.give(self.n_calls, out);
            out(Delta::Call(CallDelta::Failed { index: self.n_calls }));
            self.n_calls = self.n_calls.saturating_add(1);
        }
        self.shown.thinking = false;
        self.shown.text.push_str(&self.call.raw);
        self.call.begin("");
    }

    /// Gives all that is certain.
    fn give(&mut self, out: Sink<'_>) {
        self.shown.give(out);
        if self.state == State::Call && self.call.begun {
            self.call.give(self.n_calls, out);
        }
    }
}

impl Format {
    fn new(format: &AnswerFormat, tokenizer: Option<&Tokenizer>) -> Self {
        Format {
            markers: Markers::new(format, tokenizer),
            header: format.thinking.as_ref().map(|t| t.header.clone()).unwrap_or_default(),
            syntax: format.calls.as_ref().map(|c| c.syntax.clone()),
        }
    }
}

impl Shown {
    fn give(&mut self, out: Sink<'_>) {
        if self.text.is_empty() {
            return;
        }
        match self.thinking {
            true => out(Delta::Thinking(&self.text)),
            false => out(Delta::Text(&self.text)),
        }
        self.text.clear();
    }
}

impl OpenCall {
    fn begin(&mut self, spelling: &str) {
        self.raw.clear();
        self.raw.push_str(spelling);
        self.code.clear();
        self.braces.reset();
        self.begun = false;
        self.given = 0;
    }

    /// Gives the arguments that came since the last time.
    fn give(&mut self, index: usize, out: Sink<'_>) {
        let json = self.braces.json().get(self.given..).unwrap_or_default();
        if !json.is_empty() {
            out(Delta::Call(CallDelta::Arguments { index, json }));
            self.given = self.braces.json().len();
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::arithmetic_side_effects
)]
mod tests;
