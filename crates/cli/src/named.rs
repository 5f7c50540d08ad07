//! Which model is meant: one at a path, or the one that is built in.

use std::path::{Path, PathBuf};

use lapidary::PEBBLE;

use crate::args::{DraftArg, ModelArgs};

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
        }
    }

    /// The path that was named; `None` for the built-in model, whose name wins over a file of the
    /// same name, which `./` reaches.
    pub fn path(&self) -> Option<&Path> {
        self.model.as_deref().filter(|path| path.as_os_str() != PEBBLE)
    }
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

/// Words with spaces between them and nothing of a path. What is there is a path, whatever its name.
fn is_prompt(words: &str) -> bool {
    let lower = words.trim_end().to_lowercase();
    words.contains(char::is_whitespace)
        && !words.contains(['/', '\\'])
        && !ENDINGS.iter().any(|ending| lower.ends_with(ending))
        && !Path::new(words).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let prompts = ["What is 2 + 2?", "Hello there", "Say it.", "two\nlines"];
        for words in prompts {
            assert_eq!(settled(words, None), (true, Some(words.to_string())));
            // A second word makes the first a model.
            assert_eq!(settled(words, Some("x")), (false, Some("x".to_string())));
        }
        let here = env!("CARGO_MANIFEST_DIR");
        let paths =
            ["hello", "gemma.gguf", "my model.gguf", "My Model.LAP ", "a b/c", "a\\b c", "", here];
        for path in paths {
            assert_eq!(settled(path, None), (false, None), "{path}");
        }
    }
}
