//! Which model is meant: one at a path, one by its name, or the one that is built in.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::Result;
use lapidary::hub::{Error, Given, Hub, given};
use lapidary::{Located, PEBBLE};

use crate::args::{DraftArg, ModelArgs};
use crate::hub::pull;

impl ModelArgs {
    /// The model that was given by its path alone.
    pub fn at(path: &Path) -> Self {
        ModelArgs { model: Some(path.to_path_buf()), ..ModelArgs::default() }
    }

    /// The same model with this drafter.
    pub fn drafting(&self, draft: &DraftArg) -> Self {
        ModelArgs {
            model: self.model.clone(),
            no_mmap: self.no_mmap,
            mmproj: self.mmproj.clone(),
            draft: Some(draft.clone()),
            may_pull: self.may_pull,
        }
    }

    /// The path that was named; `None` for the built-in model, whose name wins over a file of the
    /// same name, which `./` reaches.
    pub fn path(&self) -> Option<&Path> {
        self.model.as_deref().filter(|path| path.as_os_str() != PEBBLE)
    }
}

/// Finds what stands where a model stands, [`lapidary::locate`]. If the model `may_pull` and a person
/// sees it, what is not here is downloaded.
pub fn locate(model: &Path, may_pull: bool) -> Result<Located> {
    let located = lapidary::locate(model);
    let not_here = |e: &lapidary::Error| match e {
        lapidary::Error::Hub(e) => matches!(**e, Error::NotHere { .. }),
        _ => false,
    };
    match located {
        Err(e) if may_pull && not_here(&e) && std::io::stderr().is_terminal() => {
            let hub = Hub::from_env()?;
            if hub.settings().offline {
                return Err(e.into());
            }
            let Given::Name(name) = given(&model.to_string_lossy())? else {
                return Err(e.into());
            };
            pull::bring(&hub, &name, false)?;
            Ok(lapidary::locate(model)?)
        }
        located => Ok(located?),
    }
}

fn is_family(word: &str) -> bool {
    lapidary::hub::Table::get().has_family(&word.to_lowercase())
}

/// Of one word that stands where a model stands, makes a prompt if it can be nothing else.
pub fn settle(model: &mut Option<PathBuf>, prompt: &mut Option<String>) {
    if prompt.is_none()
        && let Some(words) = model.as_deref().and_then(Path::to_str)
        && is_prompt(words)
    {
        *prompt = Some(words.to_string());
        *model = None;
    }
}

/// How files of models end.
const ENDINGS: [&str; 5] = [".lap", ".gguf", ".safetensors", ".json", ".bin"];

/// Whatever is neither there nor looks like a model's path or name is a prompt: words, or one word.
fn is_prompt(words: &str) -> bool {
    let lower = words.trim_end().to_lowercase();
    let has_spaces = words.contains(char::is_whitespace);
    let starts_as_path =
        ["./", "../", "/", "~", ".\\", "..\\"].iter().any(|p| words.starts_with(p));
    let like_a_path = words.contains(['/', '\\']) && !has_spaces;
    let is_name = words == PEBBLE || is_nearly(words, PEBBLE) || is_hub_name(words);
    !words.is_empty()
        && !starts_as_path
        && !like_a_path
        && !is_name
        && !ENDINGS.iter().any(|ending| lower.ends_with(ending))
        && !Path::new(words).exists()
}

/// Whether a word is a model's name on the hub, or nearly one.
fn is_hub_name(word: &str) -> bool {
    !word.contains(char::is_whitespace)
        && (is_family(word)
            || matches!(given(word), Ok(Given::Name(_)) | Err(Error::Unknown { close: true, .. })))
}

/// What is said of a model that is not there.
pub fn not_there(path: &Path) -> String {
    let shown = path.display();
    let name = path.to_str().unwrap_or_default();
    let meant = match is_nearly(name, PEBBLE) {
        true => format!("; did you mean {PEBBLE}?"),
        false => String::new(),
    };
    format!(
        "can't open the model {shown}{meant} (MODEL is {PEBBLE}, or a folder, a GGUF file or a .lap \
         file that you have; a prompt goes after -p)"
    )
}

/// Whether one word is the other but for a letter or two.
fn is_nearly(word: &str, other: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) =
        (word.to_lowercase().chars().collect(), other.chars().collect());
    if a.len().abs_diff(b.len()) > 2 {
        return false;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()] <= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_nearly_known_is_asked_about() {
        for nearly in ["peble", "pebbel", "Pebble", "pebbles", "pebbble"] {
            assert!(not_there(Path::new(nearly)).contains("did you mean pebble?"), "{nearly}");
        }
        for other in ["pebble-large", "gemma", "", "p"] {
            assert!(!not_there(Path::new(other)).contains("did you mean"), "{other}");
        }
    }

    #[test]
    fn the_built_in_model_has_a_name_and_needs_none() {
        assert_eq!(ModelArgs::default().path(), None);
        assert_eq!(ModelArgs::at(Path::new("pebble")).path(), None);
        for path in ["./pebble", "pebble/", "pebble.lap", "Pebble"] {
            let args = ModelArgs::at(Path::new(path));
            assert_eq!(args.path(), Some(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn words_with_spaces_are_a_prompt_and_paths_are_not() {
        let settled = |model: &str, prompt: Option<&str>| {
            let mut model = Some(PathBuf::from(model));
            let mut prompt = prompt.map(String::from);
            settle(&mut model, &mut prompt);
            (model.is_none(), prompt)
        };
        let prompts = [
            "What is 2 + 2?",
            "Hello there",
            "Say it.",
            "two\nlines",
            "hello",
            "Why?",
            "What is 1/2?",
            "and/or: what is it",
            "a\\b c",
        ];
        for words in prompts {
            assert_eq!(settled(words, None), (true, Some(words.to_string())));
            // A second word makes the first a model.
            assert_eq!(settled(words, Some("x")), (false, Some("x".to_string())));
        }
        let here = env!("CARGO_MANIFEST_DIR");
        let paths = [
            "gemma3:1b",
            "gemma4",
            "gema3:1b",
            "peble",
            "gemma.gguf",
            "my model.gguf",
            "My Model.LAP ",
            "a/b",
            "./x",
            "~/m",
            "",
            here,
        ];
        for path in paths {
            assert_eq!(settled(path, None), (false, None), "{path}");
        }
    }
}
