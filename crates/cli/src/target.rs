//! Files that are about to be written.

use std::path::Path;

use anyhow::{Context, Result};
use lapidary::program::out_file::{self, Existing};

use crate::exit::Usage;

/// Refuses a path that can't become a file, before any work is done for it.
pub fn check(path: &Path, force: bool) -> Result<()> {
    out_file::check(path, existing(force)).or_else(|e| match e.kind() {
        // The words are whole, and it is the user's to change.
        std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::InvalidInput => {
            Err(Usage(e.to_string()).into())
        }
        std::io::ErrorKind::NotADirectory => {
            let what = format!("can't write {}: its folder is a file", path.display());
            Err(Usage(what).into())
        }
        _ => Err(e).with_context(|| format!("can't write {}", path.display())),
    })
}

/// What `--force` means.
pub fn existing(force: bool) -> Existing {
    if force { Existing::Replace } else { Existing::Keep }
}
