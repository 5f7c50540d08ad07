//! `lapidary tokens`.

use std::io::{Read, Write};

use anyhow::{Context, Result};

use crate::args::TokensArgs;
use crate::exit::Usage;
use crate::model;

/// Prints the ids of a text.
pub fn run(args: &TokensArgs) -> Result<()> {
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_text(file)?,
        (None, None) => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).context("can't read standard input")?;
            String::from_utf8(bytes).map_err(|_| Usage("the text is not UTF-8".into()))?
        }
    };
    let model = model::open(&args.model)?;
    model::need_tokenizer(&model)?;
    let ids = model.tokenise(&text)?;
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &ids)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// A text file, which must be UTF-8.
pub fn read_text(path: &std::path::Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    String::from_utf8(bytes)
        .map_err(|_| Usage(format!("{} is not UTF-8 text", path.display())).into())
}
