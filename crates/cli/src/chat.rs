//! `lapidary chat`: a conversation in the terminal.

mod command;
mod drag;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use lapidary_backend::Precision;
use lapidary_program::{Modality, Program};
use lapidary_runner::{
    ChatInput, Event, Finish, FinishReason, Medium, Message, Request, Runner, Stats,
};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use serde_json::{Map, Value};

use self::command::{Command, HELP, Settings};
use crate::args::ChatArgs;
use crate::exit::is_broken_pipe;
use crate::interrupt::Interrupt;
use crate::media::{self, Loader};
use crate::model::{self, MediaNeed, Wanted};
use crate::run::{sampling, statistics, template};
use crate::tell::tell;

/// Talks until the user leaves.
pub fn run(args: &ChatArgs) -> Result<()> {
    let program = model::open(&args.model)?;
    let (tokenizer, template) = template(&args.model, &program)?;
    let params = sampling(&args.sampling, program.metadata());
    params.check(program.metadata().vocab_size)?;
    let context = model::context(args.ctx, &program, true);
    let wanted = Wanted {
        context,
        chunk: None,
        say: true,
        precision: Precision::Fast,
        media: MediaNeed::any(&program),
    };
    let loaded = model::load(program, &args.device, &wanted)?;
    let mut runner = Runner::with_parts(loaded.engine, Some(tokenizer), Some(Arc::new(template)))?;
    runner.set_load_seconds(loaded.took.as_secs_f64());
    let settings = Settings { params, max_tokens: args.max_tokens, think: args.think };
    let mut chat = Chat {
        program: runner.program().clone(),
        runner,
        settings,
        system: args.system.clone(),
        said: vec![],
        shown: vec![],
        pending: vec![],
        last: None,
        interrupt: Interrupt::listen()?,
    };
    let mut lines = Lines::new()?;
    if lines.interactive {
        tell(format_args!("{} · /help lists commands", chat.program.metadata().name));
    }
    while let Some(line) = lines.next()? {
        match chat.line(&line) {
            Ok(true) => {}
            Ok(false) => break,
            // What went wrong with one line is no reason to lose the conversation.
            Err(e) if lines.interactive && !is_broken_pipe(&e) => {
                tell(format_args!("error: {e:#}"))
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

struct Chat {
    program: Arc<Program>,
    runner: Runner,
    settings: Settings,
    system: Option<String>,
    /// The conversation, and the media in it.
    said: Vec<Message>,
    shown: Vec<Medium>,
    /// What will be shown with the next message.
    pending: Vec<Medium>,
    last: Option<Stats>,
    interrupt: Interrupt,
}

impl Chat {
    /// Takes a line; whether the chat goes on.
    fn line(&mut self, line: &str) -> Result<bool> {
        if line.trim().is_empty() && self.pending.is_empty() {
            return Ok(true);
        }
        // A path may begin with a slash; a command has no second one in its first word.
        let first = line.split_whitespace().next().unwrap_or_default();
        if first.starts_with('/') && !first[1..].contains('/') && !Path::new(first).exists() {
            match command::parse(line.trim()) {
                Ok(command) => return self.command(command),
                Err(what) => {
                    tell(format_args!("{what}"));
                    return Ok(true);
                }
            }
        }
        let (text, files) = drag::split(line, &|path| media::kind(path).is_some());
        for file in files {
            if let Some(kind) = media::kind(&file) {
                self.show(kind, &file)?;
            }
        }
        if !text.is_empty() {
            self.say(&text)?;
        }
        Ok(true)
    }

    fn command(&mut self, command: Command) -> Result<bool> {
        match command {
            Command::Help => tell(format_args!("{HELP}")),
            Command::Leave => return Ok(false),
            Command::Clear => {
                self.said.clear();
                self.shown.clear();
                self.pending.clear();
                self.runner.forget();
            }
            Command::Stats => match &self.last {
                Some(stats) => tell(format_args!("{}", statistics(stats, None))),
                None => tell(format_args!("nothing was answered yet")),
            },
            Command::System(text) => self.system = text,
            Command::Show(kind, path) => self.show(kind, &path)?,
            Command::Save(path) => self.save(&path)?,
            Command::Set(None) => tell(format_args!("{}", self.settings.show())),
            Command::Set(Some((name, value))) => {
                let vocab_size = self.program.metadata().vocab_size;
                if let Err(what) = self.settings.set(&name, &value, vocab_size) {
                    tell(format_args!("{what}"));
                }
            }
        }
        Ok(true)
    }

    fn show(&mut self, kind: Modality, path: &Path) -> Result<()> {
        let medium = Loader::new(&self.program).load(kind, path)?;
        let n: usize = medium.inputs().map(|i| i.n_soft).sum();
        let what = medium.modality().name();
        tell(format_args!("{what} of {n} tokens goes with what you say next"));
        self.pending.push(medium);
        Ok(())
    }

    /// Says something and streams the answer. What fails or is stopped before a word was said is
    /// taken back.
    fn say(&mut self, text: &str) -> Result<()> {
        let (n_said, n_shown) = (self.said.len(), self.shown.len());
        let pending = std::mem::take(&mut self.pending);
        self.said.push(media::message("user", &pending, text));
        self.shown.extend(pending.iter().cloned());
        match self.answer() {
            Ok((answer, finish)) => {
                self.last = Some(finish.stats);
                if answer.is_empty() && finish.reason == FinishReason::Cancelled {
                    self.said.truncate(n_said);
                    self.shown.truncate(n_shown);
                } else {
                    self.said.push(Message::new("assistant", answer));
                }
                Ok(())
            }
            Err(e) => {
                self.said.truncate(n_said);
                self.shown.truncate(n_shown);
                self.pending = pending;
                Err(e)
            }
        }
    }

    fn answer(&mut self) -> Result<(String, Finish)> {
        let mut messages = Vec::with_capacity(self.said.len() + 1);
        messages.extend(self.system.as_ref().map(|s| Message::new("system", s.as_str())));
        messages.extend(self.said.iter().cloned());
        let mut kwargs = Map::new();
        if self.settings.think {
            kwargs.insert("enable_thinking".into(), Value::Bool(true));
        }
        let input = ChatInput { messages: &messages, kwargs, ..ChatInput::default() };
        let prompt = self.runner.chat_prompt(&input, &self.shown)?;
        let request = Request {
            max_new: self.settings.max_tokens,
            ..Request::new(prompt, self.settings.params.clone())
        };
        let cancel = self.interrupt.arm();
        let mut out = std::io::stdout().lock();
        let mut written: std::io::Result<()> = Ok(());
        let mut answer = String::new();
        let finish = self.runner.generate(request, &cancel, |event| {
            if let Event::Text { text } = event {
                answer.push_str(text);
                if written.is_ok() {
                    written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                    if written.is_err() {
                        cancel.cancel();
                    }
                }
            }
        });
        self.interrupt.disarm();
        written.and_then(|()| writeln!(out)).context("can't write to standard output")?;
        Ok((answer, finish?))
    }

    /// The conversation as JSON, in the words of the OpenAI API. Media are named by their kind only.
    fn save(&self, path: &Path) -> Result<()> {
        let mut messages = Vec::new();
        messages.extend(self.system.as_ref().map(|s| Message::new("system", s.as_str())));
        messages.extend(self.said.iter().cloned());
        let text = serde_json::to_string_pretty(&serde_json::json!({ "messages": messages }))?;
        std::fs::write(path, text + "\n").with_context(|| path.display().to_string())?;
        tell(format_args!("saved {} messages", messages.len()));
        Ok(())
    }
}

/// What the user types, whole texts at a time.
struct Lines {
    editor: DefaultEditor,
    interactive: bool,
    history: Option<std::path::PathBuf>,
}

impl Lines {
    fn new() -> Result<Self> {
        let config = Config::builder().auto_add_history(true).max_history_size(1000)?.build();
        let mut editor = DefaultEditor::with_config(config)?;
        let interactive = std::io::stdin().is_terminal();
        let history = crate::cache::root().filter(|_| interactive).map(|r| r.join("chat_history"));
        if let Some(path) = &history {
            // There is none at the first start.
            let _ = editor.load_history(path);
        }
        Ok(Lines { editor, interactive, history })
    }

    /// The next text; `None` when the user leaves.
    fn next(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        let mut quoted = false;
        let mut interrupted = false;
        loop {
            let prompt = match (self.interactive, text.is_empty() && !quoted) {
                (false, _) => "",
                (true, true) => "> ",
                (true, false) => "… ",
            };
            let line = match self.editor.readline(prompt) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) if interrupted => return Ok(None),
                Err(ReadlineError::Interrupted) => {
                    interrupted = true;
                    text.clear();
                    quoted = false;
                    tell(format_args!("Ctrl-C again leaves"));
                    continue;
                }
                Err(ReadlineError::Eof) if text.is_empty() => return Ok(None),
                Err(ReadlineError::Eof) => return Ok(Some(text)),
                Err(e) => return Err(e).context("can't read what you type"),
            };
            interrupted = false;
            match next_line(&mut text, &mut quoted, &line) {
                true => continue,
                false => {
                    if let Some(path) = &self.history {
                        // A history that can't be kept is no reason to stop.
                        let _ = self.editor.save_history(path);
                    }
                    return Ok(Some(std::mem::take(&mut text)));
                }
            }
        }
    }
}

/// Adds a line to a text; whether more is to come.
fn next_line(text: &mut String, quoted: &mut bool, line: &str) -> bool {
    const QUOTES: &str = "\"\"\"";
    let mut line = line;
    if !*quoted
        && text.is_empty()
        && let Some(rest) = line.trim_start().strip_prefix(QUOTES)
    {
        *quoted = true;
        line = rest;
        if line.is_empty() {
            return true;
        }
    }
    if *quoted {
        if let Some(rest) = line.trim_end().strip_suffix(QUOTES) {
            text.push_str(rest);
            *quoted = false;
            return false;
        }
        text.push_str(line);
        text.push('\n');
        return true;
    }
    if let Some(rest) = line.strip_suffix('\\') {
        text.push_str(rest);
        text.push('\n');
        return true;
    }
    text.push_str(line);
    false
}

#[cfg(test)]
mod tests {
    use super::next_line;

    fn text(lines: &[&str]) -> Option<String> {
        let (mut text, mut quoted) = (String::new(), false);
        for (i, line) in lines.iter().enumerate() {
            let more = next_line(&mut text, &mut quoted, line);
            if !more {
                assert_eq!(i + 1, lines.len());
                return Some(text);
            }
        }
        None
    }

    #[test]
    fn texts_of_several_lines() {
        let cases: [(&[&str], Option<&str>); 7] = [
            (&["hi"], Some("hi")),
            (&["a\\", "b"], Some("a\nb")),
            (&["\"\"\"", "a", "b\"\"\""], Some("a\nb")),
            (&["\"\"\"a", "", "b", "\"\"\""], Some("a\n\nb\n")),
            (&["\"\"\"one\"\"\""], Some("one")),
            (&["\"\"\"", "open"], None),
            (&["say \"\"\" to me"], Some("say \"\"\" to me")),
        ];
        for (lines, want) in cases {
            assert_eq!(text(lines).as_deref(), want, "{lines:?}");
        }
    }
}
