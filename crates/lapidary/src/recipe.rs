//! From a word to a recipe, and from a word to a released shape.

use std::path::Path;

use lapidary_gemma::{RELEASED, Released, recipes};
use lapidary_program::Program;
use lapidary_quantise::Recipe;

use crate::error::{Error, Result};

/// The longest recipe that is read; real ones have some hundred lines.
const MAX_BYTES: u64 = 1 << 20;

/// A built-in recipe, or one from a TOML file.
pub(crate) fn of(name: &str, program: &Program) -> Result<Recipe> {
    let is_file = Path::new(name).extension().is_some_and(|e| e == "toml");
    if !is_file {
        return Ok(recipes::built_in(name, program)?);
    }
    let text = lapidary_program::read_at_most(Path::new(name), MAX_BYTES);
    let text = text.map_err(|e| Error::io(format!("can't read {name}"), e))?;
    let text = String::from_utf8(text)
        .map_err(|_| Error::argument(format!("the recipe {name} is not UTF-8 text")))?;
    let recipe = Recipe::from_toml(&text).map_err(Error::from);
    recipe.map_err(|e| Error::File { what: name.to_string(), source: Box::new(e) })
}

/// The program of a released shape without weights, with or without its drafter.
pub(crate) fn shape(name: &str, drafts: bool) -> Result<Program> {
    let plain = |s: &str| s.to_lowercase().replace(['-', '_', ':'], "");
    let found = RELEASED.iter().find(|r| plain(r.name) == plain(name));
    let released = found.ok_or_else(|| {
        let known: Vec<&str> = RELEASED.iter().map(|r| r.name).collect();
        Error::argument(format!("there is no shape `{name}`; there are {}", known.join(", ")))
    })?;
    let draft_config = released.draft_config.filter(|_| drafts);
    Ok(Released { draft_config, ..*released }.skeleton()?)
}
