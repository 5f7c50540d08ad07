//! Text from files and models on a terminal: shown, never obeyed.
//!
//! A name in a file or a word of a model may hold what moves the cursor, sets the window's title or
//! hides what follows. On a terminal, control characters are shown by their numbers; what goes into
//! a pipe or a file stays as it is.

use std::io::{self, IsTerminal, StdoutLock, Write};

/// Letters of a name that are shown.
const LONGEST_NAME: usize = 200;

/// Standard output, on which nothing but text has an effect if it is a terminal.
pub fn out() -> Screen<StdoutLock<'static>> {
    let out = io::stdout();
    let escapes = out.is_terminal();
    Screen::new(out.lock(), escapes)
}

/// Whether standard error is a terminal that may be given colours.
pub fn has_colours() -> bool {
    io::stderr().is_terminal() && colours_are_wanted()
}

/// Whether standard output is one.
pub fn renders() -> bool {
    io::stdout().is_terminal() && colours_are_wanted()
}

fn colours_are_wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

/// Text with its control characters shown by their numbers, but for ends of lines and tabs.
pub fn escaped(text: &str) -> String {
    let mut screen = Screen::new(Vec::with_capacity(text.len()), true);
    // A vector takes everything.
    let _ = screen.write_all(text.as_bytes());
    String::from_utf8_lossy(&screen.out).into_owned()
}

/// A name from a file, on one line and not longer than a person reads.
pub fn name(text: &str) -> String {
    let text = escaped(text).replace('\n', "\\n").replace('\t', "\\t");
    match text.char_indices().nth(LONGEST_NAME) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Something that text is written to.
pub struct Screen<W> {
    out: W,
    escapes: bool,
    /// A first byte that may begin a control character of two bytes (U+0080 to U+009F).
    begun: bool,
}

impl<W: Write> Screen<W> {
    pub fn new(out: W, escapes: bool) -> Self {
        Screen { out, escapes, begun: false }
    }
}

/// The first byte of U+0080 to U+00BF in UTF-8.
const LATIN: u8 = 0xC2;

impl<W: Write> Write for Screen<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.escapes {
            return self.out.write(bytes);
        }
        let mut from = 0;
        for (i, &byte) in bytes.iter().enumerate() {
            let begun = std::mem::replace(&mut self.begun, false);
            let plain = match byte {
                b'\n' | b'\t' => !begun,
                0..0x20 | 0x7f => false,
                LATIN => false,
                _ => !begun,
            };
            if plain {
                continue;
            }
            self.out.write_all(&bytes[from..i])?;
            from = i + 1;
            match byte {
                LATIN => {
                    if begun {
                        self.out.write_all(&[LATIN])?;
                    }
                    self.begun = true;
                }
                0x80..=0x9f => write!(self.out, "\\x{byte:02x}")?,
                _ => {
                    if begun {
                        self.out.write_all(&[LATIN])?;
                    }
                    match byte {
                        0..0x20 | 0x7f if byte != b'\n' && byte != b'\t' => {
                            write!(self.out, "\\x{byte:02x}")?;
                        }
                        byte => self.out.write_all(&[byte])?,
                    }
                }
            }
        }
        self.out.write_all(&bytes[from..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f24_what_would_move_the_cursor_is_shown() {
        let cases = [
            ("plain\n\ttext é 🙂 €", "plain\n\ttext é 🙂 €"),
            ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
            ("a\rb\x08\x7f\0", "a\\x0db\\x08\\x7f\\x00"),
            ("\u{9b}31m \u{85} \u{a0} ©", "\\x9b31m \\x85 \u{a0} ©"),
        ];
        for (text, shown) in cases {
            assert_eq!(escaped(text), shown);
            // However it comes.
            let mut screen = Screen::new(Vec::new(), true);
            text.bytes().for_each(|b| screen.write_all(&[b]).unwrap());
            assert_eq!(String::from_utf8(screen.out).unwrap(), shown);
            // A pipe gets what there is.
            let mut screen = Screen::new(Vec::new(), false);
            screen.write_all(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(screen.out).unwrap(), text);
        }
    }

    #[test]
    fn f24_names_are_cut_and_stay_on_their_line() {
        assert_eq!(name("a\nb\tc\x1b"), "a\\nb\\tc\\x1b");
        let long = "é".repeat(10_000);
        assert_eq!(name(&long).chars().count(), LONGEST_NAME + 1);
    }
}
