//! Words on standard error.

use std::fmt;
use std::io::Write;

/// Tells a line. Whoever read standard error may be gone; that is no reason to fail, or to panic as
/// `eprintln!` does.
pub fn tell(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
