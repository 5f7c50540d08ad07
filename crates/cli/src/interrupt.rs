//! Ctrl-C.

use std::path::Path;

use anyhow::{Context, Result};
use lapidary_runner::CancelToken;

/// From here on the first Ctrl-C asks the work to end and the second ends the process. Before, while
/// a model is loaded, the first one ends the process.
pub fn cancel_on_interrupt() -> Result<CancelToken> {
    let cancel = CancelToken::new();
    let asked = cancel.clone();
    ctrlc::set_handler(move || {
        if asked.is_cancelled() {
            std::process::exit(130);
        }
        asked.cancel();
    })
    .context("can't listen for Ctrl-C")?;
    Ok(cancel)
}

/// From here on Ctrl-C removes a temporary file and ends the process.
pub fn remove_on_interrupt(file: &Path) -> Result<()> {
    let file = file.to_path_buf();
    ctrlc::set_handler(move || {
        let _ = std::fs::remove_file(&file);
        std::process::exit(130);
    })
    .context("can't listen for Ctrl-C")
}
