//! `lapidary chat`: a conversation in the terminal.

mod command;
mod drag;
mod full;
mod remote;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lapidary::{Conversation, Engine, Media, Message, Modality, Reply, Stats};
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

use self::command::{Command, HELP, Settings};
use crate::args::ChatArgs;
use crate::exit::is_broken_pipe;
use crate::interrupt::Interrupt;
use crate::media;
use crate::model;
use crate::run::statistics;
use crate::screen;
use crate::show::Shown;
use crate::target;
use crate::tell::tell;

/// Talks until the user leaves.
pub fn run(args: &ChatArgs) -> Result<()> {
    if let Some(url) = &args.url {
        return remote::run(args, url);
    }
    if let Some(path) = &args.save {
        target::check(path, args.force || args.resume.as_ref() == Some(path))?;
    }
    let model = model::open(&args.model.drafting(&args.draft))?;
    model::need_template(&model)?;
    let params = args.sampling.sampling().params(model.metadata());
    params.check(model.metadata().vocab_size).map_err(lapidary::Error::from)?;
    let load = model::context(model::load_args(&args.device, true), args.ctx, true);
    let load = load.draft((&args.draft).into());
    let engine = model::load(&model, load, true)?;
    let settings = Settings { params, max_tokens: args.max_tokens, think: args.think };
    let mut chat = Chat {
        conversation: engine.conversation(),
        engine,
        settings,
        system: args.system.clone(),
        pending: vec![],
        last: None,
        interrupt: Interrupt::listen()?,
        plain: args.plain,
    };
    if let Some(path) = &args.resume {
        chat.resume(path)?;
    }
    talk(model.name(), |line| chat.line(line))?;
    match &args.save {
        Some(path) => chat.save(path),
        None => Ok(()),
    }
}

/// Hands on what the user types, until one of it ends the chat.
fn talk(name: &str, mut take: impl FnMut(&str) -> Result<bool>) -> Result<()> {
    let mut lines = Lines::new()?;
    if lines.interactive {
        tell(format_args!("{} · /help lists commands", screen::name(name)));
    }
    while let Some(line) = lines.next()? {
        match take(&line) {
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

/// What a line is.
enum Line {
    Command(Command),
    /// Begins with a slash, and is none.
    Wrong(String),
    /// Words, and files that were dragged into them.
    Said(String, Vec<PathBuf>),
}

impl Line {
    fn read(line: &str) -> Self {
        // A path may begin with a slash; a command has no second one in its first word.
        let first = line.split_whitespace().next().unwrap_or_default();
        if first.starts_with('/') && !first[1..].contains('/') && !Path::new(first).exists() {
            return command::parse(line.trim()).map_or_else(Line::Wrong, Line::Command);
        }
        let (text, files) = drag::split(line, &|path| media::kind(path).is_some());
        Line::Said(text, files)
    }
}

struct Chat {
    engine: Engine,
    conversation: Conversation,
    settings: Settings,
    system: Option<String>,
    /// What will be shown with the next message.
    pending: Vec<Media>,
    last: Option<Stats>,
    interrupt: Interrupt,
    /// Whether answers are shown as they are.
    plain: bool,
}

impl Chat {
    /// Takes a line; whether the chat goes on.
    fn line(&mut self, line: &str) -> Result<bool> {
        if line.trim().is_empty() && self.pending.is_empty() {
            return Ok(true);
        }
        let (text, files) = match Line::read(line) {
            Line::Command(command) => return self.command(command),
            Line::Wrong(what) => {
                tell(format_args!("{what}"));
                return Ok(true);
            }
            Line::Said(text, files) => (text, files),
        };
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
                self.conversation.clear();
                self.pending.clear();
                self.engine.forget()?;
                tell(format_args!("forgotten; this is a new conversation"));
            }
            Command::Drop(n) => self.drop_oldest(n)?,
            Command::Compact => self.compact()?,
            Command::Stats => match &self.last {
                Some(stats) => tell(format_args!("{}", statistics(stats, None))),
                None => tell(format_args!("nothing was answered yet")),
            },
            Command::System(text) => {
                tell(format_args!("{}", instructions(text.as_deref())));
                self.system = text;
            }
            Command::Show(kind, path) => self.show(kind, &path)?,
            Command::Save(path) => {
                if may_save(&path) {
                    self.save(&path)?;
                }
            }
            Command::Set(None) => tell(format_args!("{}", self.settings.show())),
            Command::Set(Some((name, value))) => {
                let vocab_size = self.engine.metadata().vocab_size;
                match self.settings.set(&name, &value, vocab_size) {
                    Ok(()) => tell(format_args!("{name} is {value}")),
                    Err(what) => tell(format_args!("{what}")),
                }
            }
        }
        Ok(true)
    }

    fn show(&mut self, kind: Modality, path: &Path) -> Result<()> {
        let media = model::ready(Media::file(kind, path), self.engine.model())?;
        let (what, n) = (kind.name(), media.n_tokens());
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let name = screen::name(&name);
        tell(format_args!("note: {name}: {what} of {n} tokens goes with what you say next"));
        self.pending.push(media);
        Ok(())
    }

    /// Says something and streams the answer. What fails or is stopped before a word was said is
    /// taken back.
    fn say(&mut self, text: &str) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let shown = pending.iter().cloned().fold(Message::new("user"), Message::media);
        self.conversation.message(shown.text(text));
        match self.answer() {
            Ok(reply) => {
                if let Some(finish) = &reply.finish {
                    self.say_if_cut(finish);
                }
                self.last = reply.finish.map(|finish| finish.stats);
                Ok(())
            }
            Err(e) => {
                self.conversation.discard();
                self.pending = pending;
                match full::is_full(&e) {
                    true => Err(e.context(full::ADVICE)),
                    false => Err(e),
                }
            }
        }
    }

    fn answer(&mut self) -> Result<Reply> {
        let Settings { params, max_tokens, think } = self.settings.clone();
        self.conversation
            .system(self.system.clone().unwrap_or_default())
            .sampling(params.into())
            .max_tokens(max_tokens)
            .thinking(think)
            .progress(true);
        let answer = self.conversation.answer()?;
        let cancel = answer.cancel_token();
        self.interrupt.arm(move || cancel.cancel());
        let reply = Shown::rendered(self.plain).all(answer);
        self.interrupt.disarm();
        reply
    }

    /// Writes the conversation, with its media and what was computed of it.
    fn save(&mut self, path: &Path) -> Result<()> {
        self.conversation.system(self.system.clone().unwrap_or_default());
        self.conversation.save(path)?;
        let n = self.conversation.messages().len() + usize::from(self.system.is_some());
        tell(format_args!("saved {n} messages"));
        Ok(())
    }

    /// Goes on with a conversation that was saved. Its instructions stand, unless there are new ones.
    fn resume(&mut self, path: &Path) -> Result<()> {
        let kept = self.conversation.resume(path)?;
        self.system = self.system.take().or(self.conversation.instructions().map(String::from));
        let n = self.conversation.messages().len();
        tell(format_args!("continuing after {n} messages; {kept} of their tokens are cached"));
        Ok(())
    }
}

/// What is said of instructions.
fn instructions(text: Option<&str>) -> &'static str {
    match text {
        Some(_) => "the instructions hold from the next answer on",
        None => "no instructions from the next answer on",
    }
}

/// Whether a conversation may be written to a file; says why if not.
fn may_save(path: &Path) -> bool {
    match target::check(path, false) {
        Ok(()) => true,
        Err(_) if path.is_file() && !path.is_symlink() => match may_overwrite(path) {
            true => true,
            false => {
                tell(format_args!("not saved: {} is there already", path.display()));
                false
            }
        },
        Err(e) => {
            tell(format_args!("{e:#}"));
            false
        }
    }
}

/// Asks whether a file may be overwritten; where nobody can answer, it may not.
fn may_overwrite(path: &Path) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    tell(format_args!("{} is there already; overwrite it? [y/N]", path.display()));
    let mut answer = String::new();
    // Without an answer it stays.
    let _ = std::io::stdin().read_line(&mut answer);
    matches!(answer.trim(), "y" | "Y" | "yes")
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
        let history =
            lapidary::cache::root().filter(|_| interactive).map(|r| r.join("chat_history"));
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
                    tell(format_args!("press Ctrl-C again to leave"));
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
