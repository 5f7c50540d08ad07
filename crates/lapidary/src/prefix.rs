//! Keys and values of prompts in files, so that a later process need not compute them again.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use lapidary_backend::PAGE;
use lapidary_program::FileBytes;
use lapidary_program::out_file::{Existing, OutFile};
use lapidary_text::Prompt;

use crate::engine::Engine;
use crate::error::{Error, Result};

/// A folder in which the keys and values of prompts are kept, one file for each beginning.
///
/// Prompts of one model that share their first page of tokens share a file, which holds the prompt
/// that came last: of whatever the next one has in common with it, whole pages are not computed
/// again.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    folder: PathBuf,
}

impl PrefixCache {
    /// In a folder, which is made if it is not there.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self> {
        let folder = folder.into();
        std::fs::create_dir_all(&folder)
            .map_err(|e| Error::io(format!("can't make the folder {}", folder.display()), e))?;
        Ok(PrefixCache { folder })
    }

    /// Takes what is kept of a prompt's beginning; how many tokens that are. A file that is damaged
    /// or of another engine is as good as none, and will be replaced.
    pub fn restore(&self, engine: &Engine, prompt: &Prompt, scope: u64) -> Result<usize> {
        match self.file(engine, prompt) {
            Some(file) if file.exists() => match engine.restore_prefix(&file, scope) {
                Err(Error::Runner(lapidary_runner::Error::Prefix(_))) => Ok(0),
                done => done,
            },
            _ => Ok(0),
        }
    }

    /// Keeps what was computed of a prompt; how many tokens that are.
    pub fn save(&self, engine: &Engine, prompt: &Prompt, scope: u64) -> Result<usize> {
        match self.file(engine, prompt) {
            Some(file) => engine.save_prefix(prompt, scope, &file),
            None => Ok(0),
        }
    }

    /// `None` for prompts that are shorter than a page: there is nothing to gain.
    fn file(&self, engine: &Engine, prompt: &Prompt) -> Option<PathBuf> {
        let first = prompt.tokens.get(..PAGE)?;
        let plan = engine.plan();
        let program = engine.model().program();
        let mut key = format!(
            "{} {} {} {}",
            engine.model().name(),
            program.weight_bytes(),
            plan.backend,
            plan.kv_type.name()
        )
        .into_bytes();
        first.iter().for_each(|id| key.extend(id.to_le_bytes()));
        for run in prompt.soft.iter().filter(|run| run.start < PAGE) {
            key.extend(run.input.hash);
        }
        Some(self.folder.join(format!("{}.kv", FileBytes::from_vec(key).short_hash())))
    }
}

impl Engine {
    /// Writes the keys and values of as much of a prompt as is in the caches to a file; how many
    /// tokens that are. Nothing is written if there are none.
    pub fn save_prefix(&self, prompt: &Prompt, scope: u64, file: &Path) -> Result<usize> {
        let what = format!("can't write {}", file.display());
        let new = OutFile::create(file, Existing::Replace).map_err(|e| Error::io(&what, e))?;
        let mut out = BufWriter::new(new);
        let prompt = prompt.clone();
        let (n, out) = self.with_runner(move |runner| {
            let n = runner.save_prefix(&prompt, scope, &mut out)?;
            Ok::<_, lapidary_runner::Error>((n, out))
        })??;
        if n > 0 {
            let mut out = out;
            out.flush().map_err(|e| Error::io(&what, e))?;
            let new = out.into_inner().map_err(|e| Error::io(&what, e.into_error()))?;
            new.finish().map_err(|e| Error::io(&what, e))?;
        }
        Ok(n)
    }

    /// Takes what [`Self::save_prefix`] wrote; how many tokens that are. Prompts of this scope that
    /// begin with them need not run them again.
    pub fn restore_prefix(&self, file: &Path, scope: u64) -> Result<usize> {
        let what = format!("can't read {}", file.display());
        let mut bytes = BufReader::new(File::open(file).map_err(|e| Error::io(&what, e))?);
        Ok(self.with_runner(move |runner| runner.restore_prefix(&mut bytes, scope))??)
    }
}
