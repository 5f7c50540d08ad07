//! Which mmproj file goes with a GGUF model.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_program::FileBytes;

use crate::config::LayerKind;
use crate::error::{Error, Result};
use crate::gguf::{ImportedTowers, read_towers};
use crate::import::{Imported, OpenOptions};
use crate::joined_store::{JoinedStore, Which};

/// Something that the user may want to know about how a model was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This file, which lies beside the model, was taken for its towers.
    MmprojTaken(PathBuf),
    /// Several files beside the model fit it, and none was taken.
    SeveralMmproj(Vec<PathBuf>),
    /// This drafter, which lies beside the model, was taken.
    DrafterTaken(PathBuf),
    /// A drafter beside the model was not taken.
    DrafterSkipped {
        /// Where it is.
        path: PathBuf,
        /// Why it was not.
        why: String,
    },
    /// A file beside the model was not taken: it belongs to another one.
    MmprojSkipped {
        /// The file.
        path: PathBuf,
        /// Why it was not.
        why: String,
    },
    /// A file beside the model can't be read, so what it holds is missing.
    MmprojDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Something in `generation_config.json` is not used.
    Generation {
        /// The field, and what it says.
        what: String,
        /// What happens instead.
        instead: String,
    },
}

impl Notice {
    /// Whether something is lost or open that the user may count on.
    pub fn is_surprise(&self) -> bool {
        match self {
            Notice::SeveralMmproj(_)
            | Notice::DrafterSkipped { .. }
            | Notice::MmprojDamaged { .. }
            | Notice::Generation { .. } => true,
            Notice::MmprojTaken(_) | Notice::DrafterTaken(_) | Notice::MmprojSkipped { .. } => false,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::MmprojTaken(path) => {
                write!(f, "images and audio are read by {}", path.display())
            }
            Notice::DrafterTaken(path) => write!(f, "the next tokens are guessed by {}", path.display()),
            Notice::SeveralMmproj(paths) => {
                let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
                let names = names.join(", ");
                write!(f, "several mmproj files fit this model; choose one with --mmproj: {names}")
            }
            Notice::MmprojSkipped { path, why } | Notice::DrafterSkipped { path, why } => {
                write!(f, "{} is not used: {why}", path.display())
            }
            Notice::MmprojDamaged { path, why } => write!(
                f,
                "{} can't be read, so this model takes no images or audio from it: {why}; download \
                 it again, or move it away",
                path.display()
            ),
            Notice::Generation { what, instead } => {
                write!(f, "generation_config.json: {what}; {instead}")
            }
        }
    }
}

/// Joins a model with the towers that the user names, or else with those that lie beside it.
pub(crate) fn attach(
    model: &mut Imported,
    path: &Path,
    options: &OpenOptions,
) -> Result<Vec<Notice>> {
    if let Some(named) = &options.mmproj {
        let towers = read(named, options.mmap)?;
        if let Some(why) = towers.misfit(&model.text) {
            return Err(Error::NotAModel { path: named.clone(), what: why });
        }
        join(model, towers);
        return Ok(vec![]);
    }
    let mut notices = vec![];
    let mut fitting = vec![];
    for path in beside(path) {
        match read(&path, options.mmap) {
            Ok(towers) => match towers.misfit(&model.text) {
                None => fitting.push((path, towers)),
                Some(why) => notices.push(Notice::MmprojSkipped { path, why }),
            },
            Err(e) => notices.push(Notice::MmprojDamaged { path, why: e.to_string() }),
        }
    }
    if fitting.len() > 1 {
        notices.push(Notice::SeveralMmproj(fitting.into_iter().map(|(path, _)| path).collect()));
    } else if let Some((path, towers)) = fitting.pop() {
        notices.push(Notice::MmprojTaken(path));
        join(model, towers);
    }
    Ok(notices)
}

fn read(path: &Path, mmap: bool) -> Result<ImportedTowers> {
    read_towers(path, FileBytes::open(path, mmap)?)
}

/// Other GGUF files in the model's folder whose names say that they are mmproj files.
fn beside(path: &Path) -> Vec<PathBuf> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| Some(entry.file_name().as_os_str()) != path.file_name())
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().to_lowercase();
            name.contains("mmproj") && name.ends_with(".gguf")
        })
        .map(|entry| folder.join(entry.file_name()))
        .filter(|path| path.is_file())
        .collect();
    found.sort();
    found
}

fn join(model: &mut Imported, towers: ImportedTowers) {
    let (sliding, full) = towers.sees_blocks(&model.text);
    for layer in &mut model.text.layers {
        layer.bidirectional_blocks = match layer.kind {
            LayerKind::Sliding => sliding,
            LayerKind::Full => full,
        };
    }
    model.metadata.media = towers.media;
    model.towers = towers.towers;
    let which = Which::Named(towers.weights.keys().cloned().collect());
    model.weights.extend(towers.weights);
    let main = Arc::clone(&model.store);
    model.store = Arc::new(JoinedStore { main, other: towers.store, which });
}
