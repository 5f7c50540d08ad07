//! Words on standard error.

use std::fmt;
use std::io::Write;

/// Tells a line to whoever asked for such with `LAPIDARY_DEBUG`.
pub fn debug(line: fmt::Arguments<'_>) {
    if std::env::var_os("LAPIDARY_DEBUG").is_some_and(|v| !v.is_empty()) {
        tell(format_args!("debug: {line}"));
    }
}

/// Tells a line. Whoever read standard error may be gone; that is no reason to fail, or to panic as
/// `eprintln!` does.
pub fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
