//! `lapidary tokens`.

use std::io::Write;

use anyhow::Result;

use crate::args::TokensArgs;
use crate::input;
use crate::model;

/// Prints the ids of a text.
pub fn run(args: &TokensArgs) -> Result<()> {
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => input::file(file)?,
        (None, None) => input::standard()?,
    };
    let model = model::open(&args.model)?;
    model::need_tokenizer(&model)?;
    let ids = model.tokenise(&text)?;
    let mut out = crate::screen::out();
    serde_json::to_writer(&mut out, &ids)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
