//! Text that is read to its end, if it has one.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, Result};

use crate::exit::Usage;

/// The longest text that is read; the longest context of any Gemma holds a tenth of it.
const LONGEST: u64 = 16 << 20;

/// The longest file of text that is read: perplexity is measured over long ones.
const LONGEST_FILE: u64 = 1 << 30;

/// The text on standard input.
pub fn standard() -> Result<String> {
    text(std::io::stdin().lock(), "standard input", LONGEST)
}

/// A text file, which must be UTF-8. What is no file on a disk is read like a pipe.
pub fn file(path: &Path) -> Result<String> {
    let shown = path.display().to_string();
    let file = File::open(path).with_context(|| format!("can't read {shown}"))?;
    let meta = file.metadata().with_context(|| format!("can't read {shown}"))?;
    let most = if meta.is_file() { LONGEST_FILE } else { LONGEST };
    if meta.is_file() && meta.len() > most {
        return Err(too_long(&shown, most));
    }
    text(file, &shown, most)
}

/// What was piped in beside a prompt: nothing where standard input is a terminal, or is neither a
/// pipe nor a file.
pub fn piped() -> Result<Option<String>> {
    if std::io::stdin().is_terminal() || !is_piped() {
        return Ok(None);
    }
    Ok(Some(standard()?).filter(|text| !text.trim().is_empty()))
}

#[cfg(unix)]
fn is_piped() -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileTypeExt;
    let Ok(own) = std::io::stdin().as_fd().try_clone_to_owned() else { return false };
    let kind = File::from(own).metadata().map(|m| m.file_type());
    kind.is_ok_and(|kind| kind.is_file() || kind.is_fifo())
}

#[cfg(not(unix))]
fn is_piped() -> bool {
    true
}

fn text(from: impl Read, what: &str, most: u64) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes).with_context(|| format!("can't read {what}"))?;
    if bytes.len() as u64 > most {
        return Err(too_long(what, most));
    }
    String::from_utf8(bytes).map_err(|_| Usage(format!("{what} is not UTF-8 text")).into())
}

fn too_long(what: &str, most: u64) -> anyhow::Error {
    Usage(format!("{what} holds more than {} MiB of text, the most that is read", most >> 20))
        .into()
}
