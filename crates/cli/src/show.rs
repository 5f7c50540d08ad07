//! An answer as it comes: text on standard output, thinking dimmed, tool calls as they are made.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result};
use lapidary::{Answer, Event, Reply, ToolCall};
use serde_json::Value;

use crate::markdown::Markdown;
use crate::progress::Counted;
use crate::screen::{self, Screen};
use crate::tell::{DIM, PLAIN};

/// Tokens of a prompt whose reading is worth a bar.
const LONG_PROMPT: usize = 512;

/// Writes an answer while it is read.
pub struct Shown<'a> {
    out: Out<'a>,
    err: Box<dyn Write + 'a>,
    /// Whether thinking is dimmed.
    dims: bool,
    /// Whether it is shown on a terminal.
    escapes: bool,
    /// Whether thinking is shown at all.
    thinks: bool,
    now: Now,
    /// How much of the prompt is read, until the answer begins.
    reading: Option<Counted>,
}

/// Where the answer goes.
enum Out<'a> {
    AsItIs(Box<dyn Write + 'a>),
    Markdown(Markdown<Box<dyn Write + 'a>>),
    Nowhere,
}

impl Out<'_> {
    /// The answer's own words.
    fn text(&mut self, text: &str) -> std::io::Result<()> {
        match self {
            Out::AsItIs(out) => out.write_all(text.as_bytes()),
            Out::Markdown(out) => out.push(text),
            Out::Nowhere => Ok(()),
        }
    }

    /// Words that are ours.
    fn own(&mut self, text: &str) -> std::io::Result<()> {
        match self {
            Out::AsItIs(out) => out.write_all(text.as_bytes()),
            Out::Markdown(out) => out.own(text),
            Out::Nowhere => Ok(()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Out::AsItIs(out) => out.flush(),
            Out::Markdown(out) => out.finish(),
            Out::Nowhere => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Now {
    Nothing,
    Text,
    Thinking,
    Call,
}

impl Shown<'_> {
    /// On standard output; thinking on standard error, unless `quiet`.
    pub fn standard(quiet: bool) -> Self {
        let err = std::io::stderr();
        Shown {
            out: Out::AsItIs(Box::new(screen::out())),
            escapes: err.is_terminal(),
            err: Box::new(err.lock()),
            dims: screen::has_colours(),
            thinks: !quiet,
            now: Now::Nothing,
            reading: None,
        }
    }

    /// Nothing but how much of the prompt is read.
    pub fn progress_only(quiet: bool) -> Self {
        let shown = Self::standard(quiet);
        Shown { out: Out::Nowhere, err: Box::new(std::io::sink()), ..shown }
    }

    /// The same, with Markdown made visible where standard output is a terminal that can show it.
    pub fn rendered(plain: bool) -> Self {
        let shown = Self::standard(false);
        match plain || !screen::renders() {
            true => shown,
            // It lets no control character through.
            false => Shown {
                out: Out::Markdown(Markdown::new(Box::new(std::io::stdout().lock()))),
                ..shown
            },
        }
    }

    /// Shows an answer to its end. If nobody reads what is written, the answer is cancelled.
    pub fn all(self, mut answer: Answer) -> Result<Reply> {
        let cancel = answer.cancel_token();
        self.each(&mut answer, || cancel.cancel())?;
        Ok(answer.so_far().clone())
    }

    /// Shows events to their end. If nobody reads what is written, `stop` is called.
    pub fn each<E: Into<anyhow::Error>>(
        mut self,
        events: impl Iterator<Item = Result<Event, E>>,
        stop: impl Fn(),
    ) -> Result<()> {
        let mut written: std::io::Result<()> = Ok(());
        let mut failed = None;
        for event in events {
            match event {
                Ok(event) if written.is_ok() => {
                    written = self.event(&event);
                    if written.is_err() {
                        stop();
                    }
                }
                Ok(_) => {}
                Err(e) => failed = Some(e),
            }
        }
        self.reading = None;
        // A failure before the first word leaves standard output empty.
        let ended = match self.now {
            Now::Nothing if failed.is_some() => Ok(()),
            _ => self.turn(Now::Nothing).and_then(|()| self.out.own("\n")),
        };
        written
            .and(ended)
            .and_then(|()| self.out.flush())
            .context("can't write to standard output")?;
        failed.map_or(Ok(()), |e| Err(e.into()))
    }

    fn event(&mut self, event: &Event) -> std::io::Result<()> {
        if let Event::Progress { done, total } = event {
            if self.thinks && *total >= LONG_PROMPT {
                self.reading
                    .get_or_insert_with(|| Counted::tokens("tokens read"))
                    .set(*done, *total);
            }
            return Ok(());
        }
        self.reading = None;
        match event {
            Event::Text(text) => {
                self.turn(Now::Text)?;
                self.out.text(text)?;
                return match &mut self.out {
                    Out::AsItIs(out) => out.flush(),
                    // What it holds back is not certain yet.
                    Out::Markdown(_) | Out::Nowhere => Ok(()),
                };
            }
            Event::Thinking(text) if self.thinks => {
                self.turn(Now::Thinking)?;
                // Whoever read standard error may be gone; that is no reason to fail.
                let mut screen = Screen::new(&mut self.err, self.escapes);
                let _ = screen.write_all(text.as_bytes()).and_then(|()| screen.flush());
            }
            Event::ToolCallBegin { name, .. } => {
                match self.now {
                    Now::Call => self.out.own("\n")?,
                    _ => self.turn(Now::Call)?,
                }
                self.out.own(&format!("→ {name} "))?;
            }
            Event::ToolCallArguments { json, .. } => self.out.own(json)?,
            // One that came at once did not begin before.
            Event::ToolCall(call) if self.now != Now::Call => {
                self.turn(Now::Call)?;
                self.out.own(&format!("→ {}", call_text(call)))?;
            }
            Event::ToolCallFailed { .. } => self.turn(Now::Text)?,
            _ => {}
        }
        self.out.flush()
    }

    /// What comes next is of another kind.
    fn turn(&mut self, next: Now) -> std::io::Result<()> {
        if self.now == next {
            return Ok(());
        }
        match self.now {
            Now::Thinking => {
                let end = if self.dims { PLAIN } else { "" };
                let _ = writeln!(self.err, "{end}").and_then(|()| self.err.flush());
            }
            Now::Call if next != Now::Nothing => self.out.own("\n")?,
            Now::Text => self.out.flush()?,
            _ => {}
        }
        if next == Now::Thinking && self.dims {
            let _ = write!(self.err, "{DIM}");
        }
        // Calls begin a line of their own.
        if self.now == Now::Text && next == Now::Call {
            self.out.own("\n")?;
        }
        self.now = next;
        Ok(())
    }
}

/// A call in a line: `get_weather {"city": "Auckland"}`.
pub fn call_text(call: &ToolCall) -> String {
    format!("{} {}", call.name, Value::Object(call.arguments.clone()))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Rc<RefCell<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.borrow_mut().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn shown(events: &[Event], dims: bool) -> (String, String) {
        let (out, err) = (Kept::default(), Kept::default());
        let mut shown = Shown {
            out: Out::AsItIs(Box::new(out.clone())),
            err: Box::new(err.clone()),
            dims,
            escapes: dims,
            thinks: true,
            now: Now::Nothing,
            reading: None,
        };
        events.iter().for_each(|e| shown.event(e).unwrap());
        shown.turn(Now::Nothing).unwrap();
        drop(shown);
        let text = |kept: Kept| String::from_utf8(kept.0.take()).unwrap();
        (text(out), text(err))
    }

    #[test]
    fn text_thinking_and_calls_are_told_apart() {
        let text = |s: &str| Event::Text(s.to_string());
        let thought = |s: &str| Event::Thinking(s.to_string());
        let begin = Event::ToolCallBegin { index: 0, name: "f".into() };
        let more = |s: &str| Event::ToolCallArguments { index: 0, json: s.into() };
        let whole = Event::ToolCall(ToolCall { name: "f".into(), ..ToolCall::default() });
        let (out, err) = shown(&[thought("hm"), thought("m"), text("yes"), text(".")], true);
        assert_eq!((out.as_str(), err.as_str()), ("yes.", "\x1b[2mhmm\x1b[0m\n"));
        let (out, err) = shown(&[thought("hmm"), text("yes")], false);
        assert_eq!((out.as_str(), err.as_str()), ("yes", "hmm\n"));
        let called = [text("So:"), begin, more("{\"a\":"), more("1}"), whole.clone(), text("then")];
        assert_eq!(shown(&called, false).0, "So:\n→ f {\"a\":1}\nthen");
        assert_eq!(shown(&[whole], false).0, "→ f {}");
    }
}
