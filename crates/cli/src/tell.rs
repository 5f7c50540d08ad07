//! Words on standard error.

use std::fmt;
use std::io::{IsTerminal, Write};

use crate::screen;

/// Letters that are dim, and those that are not.
pub const DIM: &str = "\x1b[2m";
pub const PLAIN: &str = "\x1b[0m";

/// Tells a line to whoever asked for such with `LAPIDARY_DEBUG`.
pub fn debug(line: fmt::Arguments<'_>) {
    if std::env::var_os("LAPIDARY_DEBUG").is_some_and(|v| !v.is_empty()) {
        tell(format_args!("debug: {line}"));
    }
}

/// Tells a line; notes are dim. Whoever read standard error may be gone; that is no reason to fail,
/// or to panic as `eprintln!` does.
pub fn tell(line: fmt::Arguments<'_>) {
    let mut err = std::io::stderr().lock();
    let mut line = line.to_string();
    if err.is_terminal() {
        line = screen::escaped(&line);
        if line.starts_with("note: ") && screen::has_colours() {
            line = format!("{DIM}{line}{PLAIN}");
        }
    }
    let _ = writeln!(err, "{line}");
}
