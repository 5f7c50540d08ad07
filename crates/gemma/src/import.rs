//! Checkpoints of every kind become programs here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_program::lap::{self, Kind};
use lapidary_program::{Blob, Description, FileBytes, Metadata, Part, Program, WeightDecl, WeightStore};

use crate::build::build;
use crate::config::{DraftConfig, TextConfig};
use crate::error::{Error, Result};
use crate::names::DRAFT_PREFIX;
use crate::{gguf, hf};

/// What `metadata.made_by` says.
pub const MADE_BY: &str = concat!("lapidary ", env!("CARGO_PKG_VERSION"));

/// How to open a model.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Map files instead of reading them.
    pub mmap: bool,
    /// A drafter's folder or GGUF file, to add its `draft` method.
    pub draft: Option<PathBuf>,
}

/// A checkpoint that was read but not yet built.
pub struct Imported {
    /// The text side.
    pub text: TextConfig,
    /// Its weights under canonical names.
    pub weights: BTreeMap<String, WeightDecl>,
    /// Their bytes.
    pub store: Arc<dyn WeightStore>,
    /// Facts for the runner.
    pub metadata: Metadata,
    /// Tokenizer, chat template.
    pub blobs: BTreeMap<String, Blob>,
}

/// A drafter that was read but not yet built.
pub struct ImportedDraft {
    /// Its layers and head.
    pub config: DraftConfig,
    /// Its weights under canonical names.
    pub weights: BTreeMap<String, WeightDecl>,
    /// Their bytes.
    pub store: Arc<dyn WeightStore>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { mmap: true, draft: None }
    }
}

/// Opens a Hugging Face folder (also one that MLX or torchao quantised), a GGUF file or a `.lap`
/// file.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Program> {
    let meta = std::fs::metadata(path)
        .map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
    let imported = if meta.is_dir() {
        hf::read_model(path, options.mmap)?
    } else {
        let bytes = FileBytes::open(path, options.mmap)?;
        match lap::sniff(&bytes) {
            Kind::Gguf => gguf::read_model(path, bytes)?,
            _ if options.draft.is_some() => {
                let what = "a drafter is added when a checkpoint is imported; give the checkpoint's \
                            folder or GGUF file instead of a .lap"
                    .to_string();
                return Err(Error::NotAModel { path: path.to_path_buf(), what });
            }
            _ => return Ok(lap::from_bytes(bytes)?),
        }
    };
    let draft = options.draft.as_deref().map(|d| read_draft(d, options.mmap)).transpose()?;
    assemble(imported, draft)
}

fn read_draft(path: &Path, mmap: bool) -> Result<ImportedDraft> {
    if path.is_dir() {
        return hf::read_draft(path, mmap);
    }
    gguf::read_draft(path, FileBytes::open(path, mmap)?)
}

/// Builds the graphs and makes the program.
pub fn assemble(model: Imported, draft: Option<ImportedDraft>) -> Result<Program> {
    let Imported { text, mut weights, mut store, metadata, blobs } = model;
    let mut draft_config = None;
    if let Some(draft) = draft {
        weights.extend(
            draft.weights.into_iter().map(|(name, w)| (format!("{DRAFT_PREFIX}{name}"), w)),
        );
        store = Arc::new(WithDraft { target: store, draft: draft.store });
        draft_config = Some(draft.config);
    }
    let built = build(&text, draft_config.as_ref(), &weights)?;
    let description =
        Description { metadata, states: built.states, methods: built.methods, weights };
    Ok(Program::new(description, blobs, store)?)
}

/// A target's weights and, under a prefix, its drafter's.
struct WithDraft {
    target: Arc<dyn WeightStore>,
    draft: Arc<dyn WeightStore>,
}

impl WeightStore for WithDraft {
    fn part(&self, weight: &str, part: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        match weight.strip_prefix(DRAFT_PREFIX) {
            Some(own) => self.draft.part(own, part),
            None => self.target.part(weight, part),
        }
    }

    fn is_at_hand(&self, weight: &str) -> bool {
        match weight.strip_prefix(DRAFT_PREFIX) {
            Some(own) => self.draft.is_at_hand(own),
            None => self.target.is_at_hand(weight),
        }
    }

    fn fingerprint(&self) -> Option<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.target.fingerprint()?);
        hasher.update(&self.draft.fingerprint()?);
        Some(*hasher.finalize().as_bytes())
    }

    fn forget(&self, weight: &str) {
        match weight.strip_prefix(DRAFT_PREFIX) {
            Some(own) => self.draft.forget(own),
            None => self.target.forget(weight),
        }
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        match weight.strip_prefix(DRAFT_PREFIX) {
            Some(own) => self.draft.make_rows(own, part, rows),
            None => self.target.make_rows(weight, part, rows),
        }
    }
}
