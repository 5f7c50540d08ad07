//! Files that are about to be written.

use std::path::Path;

use anyhow::{Context, Result};

use crate::exit::Usage;

/// Refuses a path that can't become a file, before any work is done for it.
pub fn check(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(Usage(format!("{} is a folder; name a file", path.display())).into());
    }
    let folder = folder(path);
    let found = std::fs::metadata(folder).with_context(|| {
        format!("can't write {}: can't use the folder {}", path.display(), folder.display())
    })?;
    if !found.is_dir() {
        let what = format!("can't write {}: {} is a file", path.display(), folder.display());
        return Err(Usage(what).into());
    }
    Ok(())
}

/// The folder that a file stands in.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}
