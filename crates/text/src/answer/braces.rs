//! Calls of the form `PREFIX name{key:value,…}`, read as they come and written as JSON.
//!
//! Strings stand between quotes that are markers, keys are bare, numbers and the words `true`,
//! `false` and `null` are as in JSON, lists stand in `[]` and objects in `{}`. Keys in quotes, strings
//! as JSON has them and spaces between are taken, too. A model may write anything: whatever else
//! comes is no call.

use std::collections::BTreeSet;

use serde_json::Number;

/// Lists and objects inside one another, at most.
const MAX_DEPTH: usize = 32;

/// What a call is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Char(char),
    /// The marker that begins and ends a string.
    Quote,
}

/// It is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoCall;

/// A call that is being read.
#[derive(Clone, Debug, Default)]
pub(super) struct Braces {
    expect: Expect,
    open: Vec<Frame>,
    name: String,
    json: String,
    /// A key, word or JSON string that is not whole.
    word: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expect {
    /// What stands before the name.
    #[default]
    Prefix,
    Name,
    /// A key, or the end of an object that is empty so far.
    Key {
        first: bool,
    },
    QuotedKey(End),
    Colon,
    /// A value, or the end of a list that is empty so far.
    Value {
        first: bool,
    },
    String,
    JsonString {
        escaped: bool,
    },
    Word,
    /// A comma or an end.
    Comma,
    Nothing,
}

/// What ends a key in quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Quote,
    DoubleQuote,
}

#[derive(Clone, Debug)]
enum Frame {
    /// The keys so far: one that stands twice leaves open which is meant.
    Object(BTreeSet<String>),
    List,
}

impl Braces {
    /// Begins anew.
    pub(super) fn reset(&mut self) {
        self.expect = Expect::Prefix;
        self.open.clear();
        self.name.clear();
        self.json.clear();
        self.word.clear();
    }

    /// The name, once it is whole.
    pub(super) fn name(&self) -> Option<&str> {
        let whole = !matches!(self.expect, Expect::Prefix | Expect::Name);
        whole.then_some(self.name.as_str())
    }

    /// What the arguments are so far, as JSON.
    pub(super) fn json(&self) -> &str {
        &self.json
    }

    /// Whether nothing more may come.
    pub(super) fn is_whole(&self) -> bool {
        self.expect == Expect::Nothing
    }

    /// Whether a string is open that only [`Input::Quote`] ends.
    pub(super) fn in_string(&self) -> bool {
        matches!(self.expect, Expect::String | Expect::QuotedKey(End::Quote))
    }

    pub(super) fn push(&mut self, input: Input, prefix: &str) -> Result<(), NoCall> {
        match self.expect {
            Expect::Prefix => self.prefix(input, prefix),
            Expect::Name => self.name_part(input),
            Expect::Key { first } => self.key(input, first),
            Expect::QuotedKey(end) => self.quoted_key(input, end),
            Expect::Colon => match input {
                Input::Char(':') => self.end_key(),
                Input::Char(c) if c.is_ascii_whitespace() => Ok(()),
                _ => Err(NoCall),
            },
            Expect::Value { first } => self.value(input, first),
            Expect::String => {
                match input {
                    Input::Quote => {
                        self.json.push('"');
                        self.expect = Expect::Comma;
                    }
                    Input::Char(c) => push_escaped(&mut self.json, c),
                }
                Ok(())
            }
            Expect::JsonString { escaped } => self.json_string(input, escaped),
            Expect::Word => match input {
                Input::Char(c) if is_after_word(c) => {
                    self.end_word()?;
                    self.comma(c)
                }
                Input::Char(c) => {
                    self.word.push(c);
                    Ok(())
                }
                Input::Quote => Err(NoCall),
            },
            Expect::Comma => match input {
                Input::Char(c) => self.comma(c),
                Input::Quote => Err(NoCall),
            },
            Expect::Nothing => match input {
                Input::Char(c) if c.is_ascii_whitespace() => Ok(()),
                _ => Err(NoCall),
            },
        }
    }

    fn prefix(&mut self, input: Input, prefix: &str) -> Result<(), NoCall> {
        let left = prefix.strip_prefix(self.word.as_str()).unwrap_or_default();
        match input {
            Input::Char(c) if left.is_empty() => {
                self.word.clear();
                self.expect = Expect::Name;
                self.name_part(Input::Char(c))
            }
            Input::Char(c) if left.starts_with(c) => {
                self.word.push(c);
                Ok(())
            }
            _ => Err(NoCall),
        }
    }

    fn name_part(&mut self, input: Input) -> Result<(), NoCall> {
        match input {
            Input::Char('{') if !self.name.is_empty() => self.begin_object(),
            Input::Char(c) if is_name(c) => {
                self.name.push(c);
                Ok(())
            }
            _ => Err(NoCall),
        }
    }

    fn key(&mut self, input: Input, first: bool) -> Result<(), NoCall> {
        match input {
            Input::Char(':') if !self.word.is_empty() => self.end_key(),
            Input::Char('}') if first && self.word.is_empty() => self.end_frame('}'),
            Input::Char(c) if is_name(c) => {
                self.word.push(c);
                Ok(())
            }
            Input::Char(c) if c.is_ascii_whitespace() && self.word.is_empty() => Ok(()),
            Input::Char('"') if self.word.is_empty() => {
                self.expect = Expect::QuotedKey(End::DoubleQuote);
                Ok(())
            }
            Input::Quote if self.word.is_empty() => {
                self.expect = Expect::QuotedKey(End::Quote);
                Ok(())
            }
            _ => Err(NoCall),
        }
    }

    fn quoted_key(&mut self, input: Input, end: End) -> Result<(), NoCall> {
        match (input, end) {
            (Input::Quote, End::Quote) | (Input::Char('"'), End::DoubleQuote) => {
                self.expect = Expect::Colon;
                Ok(())
            }
            (Input::Quote, End::DoubleQuote) | (Input::Char('\\'), End::DoubleQuote) => Err(NoCall),
            (Input::Char(c), _) => {
                self.word.push(c);
                Ok(())
            }
        }
    }

    fn end_key(&mut self) -> Result<(), NoCall> {
        let Some(Frame::Object(keys)) = self.open.last_mut() else { return Err(NoCall) };
        if !keys.is_empty() {
            self.json.push(',');
        }
        self.json.push('"');
        for c in self.word.chars() {
            push_escaped(&mut self.json, c);
        }
        self.json.push_str("\":");
        if !keys.insert(std::mem::take(&mut self.word)) {
            return Err(NoCall);
        }
        self.expect = Expect::Value { first: false };
        Ok(())
    }

    fn value(&mut self, input: Input, first: bool) -> Result<(), NoCall> {
        match input {
            Input::Quote => {
                self.json.push('"');
                self.expect = Expect::String;
                Ok(())
            }
            Input::Char('"') => {
                self.expect = Expect::JsonString { escaped: false };
                Ok(())
            }
            Input::Char('{') => self.begin_object(),
            Input::Char('[') => {
                self.json.push('[');
                self.begin(Frame::List)?;
                self.expect = Expect::Value { first: true };
                Ok(())
            }
            Input::Char(']') if first => self.end_frame(']'),
            Input::Char(c) if c.is_ascii_whitespace() => Ok(()),
            Input::Char(c) if is_after_word(c) => Err(NoCall),
            Input::Char(c) => {
                self.word.push(c);
                self.expect = Expect::Word;
                Ok(())
            }
        }
    }

    /// A string as JSON has it; taken once it is whole.
    fn json_string(&mut self, input: Input, escaped: bool) -> Result<(), NoCall> {
        let Input::Char(c) = input else { return Err(NoCall) };
        if c != '"' || escaped {
            // Line ends are often left as they are.
            match c.is_control() {
                true => push_escaped(&mut self.word, c),
                false => self.word.push(c),
            }
            self.expect = Expect::JsonString { escaped: c == '\\' && !escaped };
            return Ok(());
        }
        let text: String =
            serde_json::from_str(&format!("\"{}\"", self.word)).map_err(|_| NoCall)?;
        self.json.push('"');
        for c in text.chars() {
            push_escaped(&mut self.json, c);
        }
        self.json.push('"');
        self.word.clear();
        self.expect = Expect::Comma;
        Ok(())
    }

    fn end_word(&mut self) -> Result<(), NoCall> {
        let word = self.word.as_str();
        if !["true", "false", "null"].contains(&word)
            && serde_json::from_str::<Number>(word).is_err()
        {
            return Err(NoCall);
        }
        self.json.push_str(word);
        self.word.clear();
        self.expect = Expect::Comma;
        Ok(())
    }

    fn comma(&mut self, c: char) -> Result<(), NoCall> {
        match (c, self.open.last()) {
            (',', Some(Frame::Object(_))) => {
                self.expect = Expect::Key { first: false };
                Ok(())
            }
            (',', Some(Frame::List)) => {
                self.json.push(',');
                self.expect = Expect::Value { first: false };
                Ok(())
            }
            ('}' | ']', _) => self.end_frame(c),
            (c, _) if c.is_ascii_whitespace() => Ok(()),
            _ => Err(NoCall),
        }
    }

    fn begin_object(&mut self) -> Result<(), NoCall> {
        self.json.push('{');
        self.begin(Frame::Object(BTreeSet::new()))?;
        self.expect = Expect::Key { first: true };
        Ok(())
    }

    fn begin(&mut self, frame: Frame) -> Result<(), NoCall> {
        if self.open.len() >= MAX_DEPTH {
            return Err(NoCall);
        }
        self.open.push(frame);
        Ok(())
    }

    fn end_frame(&mut self, c: char) -> Result<(), NoCall> {
        match (self.open.pop(), c) {
            (Some(Frame::Object(_)), '}') | (Some(Frame::List), ']') => {}
            _ => return Err(NoCall),
        }
        self.json.push(c);
        self.expect = if self.open.is_empty() { Expect::Nothing } else { Expect::Comma };
        Ok(())
    }
}

/// Names and keys have letters, digits and little else.
fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.$".contains(c)
}

fn is_after_word(c: char) -> bool {
    ",}]".contains(c) || c.is_ascii_whitespace()
}

/// Appends a character of a JSON string.
fn push_escaped(json: &mut String, c: char) {
    match c {
        '"' => json.push_str("\\\""),
        '\\' => json.push_str("\\\\"),
        '\n' => json.push_str("\\n"),
        '\r' => json.push_str("\\r"),
        '\t' => json.push_str("\\t"),
        c if u32::from(c) < 0x20 => json.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => json.push(c),
    }
}
