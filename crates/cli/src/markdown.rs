//! Markdown on a terminal, while it is written.
//!
//! A piece of text is shown as soon as its look is certain: plain words at once, a marked span when
//! its end has come, the rest when the line ends. A mark that turns out to be none is shown as it
//! stands, so nothing that was said is lost.

use std::io::{self, Write};

use crate::screen;

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const ITALIC: &str = "\x1b[3m";
const UNDERLINED: &str = "\x1b[4m";
const STRUCK: &str = "\x1b[9m";
const CODE: &str = "\x1b[36m";

/// Signs that look the same all over a line, as a rule or the border of code does.
const RULES: [char; 3] = ['-', '*', '_'];

/// Shows Markdown on a terminal.
pub struct Markdown<W> {
    out: W,
    /// What has come of a line and is not shown yet.
    held: String,
    /// Whether nothing of the line is shown yet.
    at_start: bool,
    /// The sign that closes a block of code, and how many of it there must be.
    fence: Option<(char, usize)>,
    /// What everything on this line has, as a heading does.
    line_style: &'static str,
    /// The last letter that was shown on this line.
    last: Option<char>,
}

impl<W: Write> Markdown<W> {
    pub fn new(out: W) -> Self {
        Markdown {
            out,
            held: String::new(),
            at_start: true,
            fence: None,
            line_style: "",
            last: None,
        }
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> io::Result<()> {
        for part in text.split_inclusive('\n') {
            match part.strip_suffix('\n') {
                Some(line) => {
                    self.held.push_str(line);
                    self.end_line()?;
                }
                None => {
                    self.held.push_str(part);
                    self.show(false)?;
                }
            }
        }
        self.out.flush()
    }

    /// Takes text that is not Markdown, after what was held back.
    pub fn own(&mut self, text: &str) -> io::Result<()> {
        self.finish()?;
        self.out.write_all(screen::escaped(text).as_bytes())?;
        self.out.flush()
    }

    /// Shows what was held back.
    pub fn finish(&mut self) -> io::Result<()> {
        if !self.held.is_empty() || !self.at_start {
            self.show(true)?;
            self.line_over()?;
        }
        self.fence = None;
        self.out.flush()
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.show(true)?;
        self.line_over()?;
        writeln!(self.out)
    }

    fn line_over(&mut self) -> io::Result<()> {
        if !self.line_style.is_empty() {
            write!(self.out, "{RESET}")?;
        }
        self.held.clear();
        self.at_start = true;
        self.line_style = "";
        self.last = None;
        Ok(())
    }

    fn show(&mut self, whole: bool) -> io::Result<()> {
        if self.at_start {
            match self.begin(whole)? {
                true => self.at_start = false,
                false => return Ok(()),
            }
        }
        let held = std::mem::take(&mut self.held);
        if self.fence.is_some() {
            return self.text(&held, "");
        }
        let shown = self.inline(&held, whole, "")?;
        self.held = held[shown..].to_string();
        Ok(())
    }

    /// Shows what a line begins with, once that is certain; whether it is.
    fn begin(&mut self, whole: bool) -> io::Result<bool> {
        let line = self.held.as_str();
        let rest = line.trim_start();
        let indent = line.len() - rest.len();
        if let Some((sign, n)) = self.fence {
            if !rest.is_empty() && rest.chars().all(|c| c == sign || c == ' ') {
                let is_end = rest.trim_end().chars().count() >= n;
                if whole && is_end {
                    self.fence = None;
                    write!(self.out, "{DIM}{}{RESET}", screen::escaped(line))?;
                    self.held.clear();
                }
                return Ok(whole);
            }
            if !rest.is_empty() {
                self.line_style = CODE;
                write!(self.out, "{CODE}")?;
            }
            return Ok(whole || !rest.is_empty());
        }
        let Some(first) = rest.chars().next() else { return Ok(whole) };
        let same = rest.chars().take_while(|c| *c == first).count();
        let after = rest.chars().nth(same);
        // It may go on.
        let may_mark = matches!(first, '#' | '>' | '-' | '+' | '`' | '~' | '*' | '_');
        if after.is_none() && !whole && may_mark {
            return Ok(false);
        }
        match first {
            '`' | '~' if same >= 3 => {
                // What comes after the sign is the language, if there is none of it.
                if first == '`' && rest[same..].contains('`') {
                    return Ok(true);
                }
                if whole {
                    self.fence = Some((first, same));
                    write!(self.out, "{DIM}{}{RESET}", screen::escaped(line))?;
                    self.held.clear();
                }
                Ok(whole)
            }
            '#' if same <= 6 && after == Some(' ') => {
                let text = rest[same..].trim_start().to_string();
                if text.is_empty() {
                    return Ok(whole);
                }
                self.line_style = BOLD;
                write!(self.out, "{BOLD}")?;
                self.held = text;
                Ok(true)
            }
            '>' => {
                let text = rest[1..].strip_prefix(' ').unwrap_or(&rest[1..]).to_string();
                write!(self.out, "{DIM}│{RESET} ")?;
                self.held = text;
                Ok(true)
            }
            sign if RULES.contains(&sign) && rest.chars().all(|c| c == sign || c == ' ') => {
                let n = rest.chars().filter(|c| *c == sign).count();
                if whole && n >= 3 {
                    write!(self.out, "{DIM}{}{RESET}", "─".repeat(40))?;
                    self.held.clear();
                }
                Ok(whole)
            }
            '-' | '*' | '+' if same == 1 && after == Some(' ') => {
                let text = rest[1..].trim_start().to_string();
                write!(self.out, "{}• ", &line[..indent])?;
                self.held = text;
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    /// Shows as much of a text as is certain; returns how much that was.
    fn inline(&mut self, text: &str, whole: bool, style: &'static str) -> io::Result<usize> {
        let mut at = 0;
        while let Some(first) = text[at..].chars().next() {
            let rest = &text[at..];
            let step = match first {
                '`' => self.code(rest, whole)?,
                '*' | '_' | '~' => self.marked(rest, whole)?,
                '[' => self.link(rest, whole)?,
                '\\' => match rest[1..].chars().next() {
                    Some(next) if next.is_ascii_punctuation() => {
                        self.text(&rest[1..2], style)?;
                        Step::Shown(2)
                    }
                    None if !whole => Step::Wait,
                    _ => Step::Plain(1),
                },
                _ => {
                    let end = rest.find(['`', '*', '_', '~', '[', '\\']).unwrap_or(rest.len());
                    Step::Plain(end)
                }
            };
            match step {
                Step::Wait => break,
                Step::Shown(n) => at += n,
                Step::Plain(n) => {
                    self.text(&rest[..n], style)?;
                    at += n;
                }
            }
        }
        Ok(at)
    }

    fn code(&mut self, rest: &str, whole: bool) -> io::Result<Step> {
        let n = run_of(rest, '`');
        let mut from = n;
        while let Some(found) = rest[from..].find('`') {
            let start = from + found;
            let closing = run_of(&rest[start..], '`');
            let end = start + closing;
            if closing == n && (whole || end < rest.len()) {
                let inside = &rest[n..start];
                let trimmed = inside.strip_prefix(' ').and_then(|i| i.strip_suffix(' '));
                let trimmed = trimmed.filter(|i| !i.trim().is_empty()).unwrap_or(inside);
                self.text(trimmed, CODE)?;
                self.last = Some('`');
                return Ok(Step::Shown(end));
            }
            from = end;
        }
        Ok(if whole { Step::Plain(n) } else { Step::Wait })
    }

    /// Bold, italic and struck text.
    fn marked(&mut self, rest: &str, whole: bool) -> io::Result<Step> {
        let sign = rest.chars().next().unwrap_or('*');
        let n = run_of(rest, sign);
        let Some(next) = rest[n..].chars().next() else {
            return Ok(if whole { Step::Plain(n) } else { Step::Wait });
        };
        let style = match (sign, n) {
            ('~', 2) => STRUCK,
            ('~', _) => return Ok(Step::Plain(n)),
            (_, 1) => ITALIC,
            (_, 2) => BOLD,
            (_, 3) => "\x1b[1m\x1b[3m",
            _ => return Ok(Step::Plain(n)),
        };
        let inside_word = self.last.is_some_and(char::is_alphanumeric);
        // A sign before punctuation marks nothing within a word: `f(*)`.
        let is_plain = inside_word && (sign == '_' || next.is_ascii_punctuation());
        if next.is_whitespace() || is_plain {
            return Ok(Step::Plain(n));
        }
        let mut from = n;
        while let Some(found) = rest[from..].find(sign) {
            let start = from + found;
            let closing = run_of(&rest[start..], sign);
            let end = start + closing;
            let before = rest[..start].chars().next_back();
            let after = rest[end..].chars().next();
            if after.is_none() && !whole {
                return Ok(Step::Wait);
            }
            let ends_word = sign != '_' || !after.is_some_and(char::is_alphanumeric);
            if closing >= n && start > n && !before.is_some_and(char::is_whitespace) && ends_word {
                // Of more signs than are needed, the last ones close: `**a *b***`.
                let inside = &rest[n..end - n];
                self.last = None;
                self.inline(inside, true, style)?;
                self.last = Some(sign);
                return Ok(Step::Shown(end));
            }
            from = end;
        }
        Ok(if whole { Step::Plain(n) } else { Step::Wait })
    }

    fn link(&mut self, rest: &str, whole: bool) -> io::Result<Step> {
        let unsure = if whole { Step::Plain(1) } else { Step::Wait };
        let Some(close) = rest.find(']') else { return Ok(unsure) };
        match rest[close + 1..].chars().next() {
            Some('(') => {}
            None => return Ok(unsure),
            Some(_) => return Ok(Step::Plain(1)),
        }
        let Some(end) = rest[close..].find(')') else { return Ok(unsure) };
        let (name, address) = (&rest[1..close], &rest[close + 2..close + end]);
        self.text(name, UNDERLINED)?;
        if name != address && !name.is_empty() {
            self.text(&format!(" ({address})"), DIM)?;
        }
        Ok(Step::Shown(close + end + 1))
    }

    fn text(&mut self, text: &str, style: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.last = text.chars().next_back();
        let text = screen::escaped(text);
        match style {
            "" => write!(self.out, "{text}"),
            // Within bold text, bold goes on after it.
            style => write!(self.out, "{style}{text}{RESET}{}", self.line_style),
        }
    }
}

/// What became of the beginning of a text.
enum Step {
    /// More must come first.
    Wait,
    /// So many bytes were shown.
    Shown(usize),
    /// So many bytes are nothing special.
    Plain(usize),
}

/// How often a text begins with a sign.
fn run_of(text: &str, sign: char) -> usize {
    text.chars().take_while(|c| *c == sign).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of a text, with names in place of what sets a look. It is the same however the
    /// text comes.
    fn shown(text: &str) -> String {
        let mut all = Vec::new();
        for size in [1, 2, 3, 7, text.len().max(1)] {
            let mut markdown = Markdown::new(Vec::new());
            let letters: Vec<char> = text.chars().collect();
            for piece in letters.chunks(size) {
                markdown.push(&piece.iter().collect::<String>()).unwrap();
            }
            markdown.finish().unwrap();
            all.push(String::from_utf8(markdown.out).unwrap());
        }
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        let names = [
            (RESET, "</>"),
            (BOLD, "<b>"),
            (DIM, "<dim>"),
            (ITALIC, "<i>"),
            (UNDERLINED, "<u>"),
            (STRUCK, "<s>"),
            (CODE, "<code>"),
        ];
        names.iter().fold(all.remove(0), |text, (code, name)| text.replace(code, name))
    }

    #[test]
    fn marks_become_looks() {
        let cases = [
            ("plain words", "plain words"),
            ("a **bold** word", "a <b>bold</> word"),
            ("an *odd* one", "an <i>odd</> one"),
            ("**a *b* c**", "<b>a </><i>b</><b> c</>"),
            ("_so_ and `x_y`", "<i>so</> and <code>x_y</>"),
            ("# Title\ntext", "<b>Title</>\ntext"),
            ("- one\n  - two\n* three", "• one\n  • two\n• three"),
            ("1. one\n2. two", "1. one\n2. two"),
            ("> said", "<dim>│</> said"),
            ("---\n", "<dim>────────────────────────────────────────</>\n"),
            (
                "```rust\nlet *x = 1;\n\n```\nok *so*",
                "<dim>```rust</>\n<code>let *x = 1;</>\n\n<dim>```</>\nok <i>so</>",
            ),
            ("[here](http://x)", "<u>here</><dim> (http://x)</>"),
            ("~~no~~ \\*yes\\*", "<s>no</> *yes*"),
            ("``a`b``.", "<code>a`b</>."),
        ];
        for (text, want) in cases {
            assert_eq!(shown(text), want, "{text:?}");
        }
    }

    #[test]
    fn what_marks_nothing_stays() {
        for text in [
            "2 * 3 * 4 = 24",
            "snake_case_name and __init",
            "**kwargs and *args",
            "a [note] and a[0](1",
            "`open",
            "C:\\dir\\file",
            "-5 degrees",
            "#hashtag",
            "- ",
            "**",
            "*",
            "``",
            "#",
            "***",
            "~/home ~ about",
            "x\n\ny",
            "",
            "\n\n",
        ] {
            let want = match text {
                "***" => "<dim>────────────────────────────────────────</>",
                text => text,
            };
            assert_eq!(shown(text), want, "{text:?}");
        }
    }

    #[test]
    fn f24_marks_do_not_let_control_characters_through() {
        let texts =
            ["**a\x1b[2Jb**", "`\x1b]0;t\x07`", "# \x1b[1m", "[\x1b](\x1b)", "```\x1b\n\x1b\n```"];
        for text in texts {
            let mut markdown = Markdown::new(Vec::new());
            markdown.push(text).unwrap();
            markdown.finish().unwrap();
            let all = String::from_utf8(markdown.out).unwrap();
            let looks = [RESET, BOLD, DIM, ITALIC, UNDERLINED, STRUCK, CODE];
            let rest = looks.iter().fold(all, |text, look| text.replace(look, ""));
            assert!(!rest.contains('\x1b') && rest.contains("\\x1b"), "{rest:?}");
        }
    }

    #[test]
    fn words_are_shown_as_they_come() {
        let mut markdown = Markdown::new(Vec::new());
        markdown.push("It is a long").unwrap();
        assert_eq!(markdown.out, b"It is a long");
        markdown.push(" **st").unwrap();
        assert_eq!(markdown.out, b"It is a long ");
    }
}
