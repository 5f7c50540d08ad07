//! From a word after `--quant` to a recipe, and from a word after `--synthetic` to a shape.

use std::path::Path;

use anyhow::{Context, Result};
use lapidary_gemma::{RELEASED, Released, recipes};
use lapidary_program::Program;
use lapidary_quantise::Recipe;

use crate::exit::Usage;

/// A built-in recipe, or one from a TOML file.
pub fn of(name: &str, program: &Program) -> Result<Recipe> {
    let is_file = Path::new(name).extension().is_some_and(|e| e == "toml");
    if !is_file {
        return Ok(recipes::built_in(name, program)?);
    }
    let text = std::fs::read_to_string(name).with_context(|| format!("can't read {name}"))?;
    Recipe::from_toml(&text).with_context(|| name.to_string())
}

/// The program of a released shape, without weights and without its drafter.
pub fn shape(name: &str) -> Result<Program> {
    let plain = |s: &str| s.to_lowercase().replace(['-', '_', ':'], "");
    let found = RELEASED.iter().find(|r| plain(r.name) == plain(name));
    let released = found.ok_or_else(|| {
        let known: Vec<&str> = RELEASED.iter().map(|r| r.name).collect();
        Usage(format!("there is no shape `{name}`; there are {}", known.join(", ")))
    })?;
    Ok(Released { draft_config: None, ..*released }.skeleton()?)
}
