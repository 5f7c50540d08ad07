//! Checkpoints of every kind become programs here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_program::lap::{self, Kind};
use lapidary_program::{Blob, Description, FileBytes, Metadata, Program, WeightDecl, WeightStore};

use crate::answer::add_answer_format;
use crate::attach::attach_at;
use crate::build::build;
use crate::config::{DraftConfig, TextConfig};
use crate::error::{Error, Result};
use crate::joined_store::{JoinedStore, Which};
use crate::mmproj::{self, Notice};
use crate::names::DRAFT_PREFIX;
use crate::towers::Towers;
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
    /// Whether a drafter that lies beside the checkpoint is added if none is named.
    pub draft_beside: bool,
    /// The GGUF file of a GGUF model's towers, to add `vision` and `audio`. Without it, the one that
    /// lies beside the model is taken, if it is the only one that fits.
    pub mmproj: Option<PathBuf>,
}

/// A program, and what there is to say of how it was opened.
pub struct Opened {
    /// The program.
    pub program: Program,
    /// For people.
    pub notices: Vec<Notice>,
}

/// A checkpoint that was read but not yet built.
pub struct Imported {
    /// The text side.
    pub text: TextConfig,
    /// What it has besides.
    pub towers: Towers,
    /// All weights under canonical names.
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
        OpenOptions { mmap: true, draft: None, draft_beside: false, mmproj: None }
    }
}

/// Opens a Hugging Face folder (also one that MLX or torchao quantised), a GGUF file or a `.lap`
/// file.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Program> {
    open_noticing(path, options).map(|opened| opened.program)
}

/// The same, with what there is to say of how it was opened.
pub fn open_noticing(path: &Path, options: &OpenOptions) -> Result<Opened> {
    let meta = std::fs::metadata(path)
        .map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
    let mut notices = vec![];
    let imported = if meta.is_dir() {
        refuse_mmproj(path, options, "a Hugging Face folder holds its towers itself")?;
        let (imported, noticed) = hf::read_noticing(path, options.mmap)?;
        notices = noticed;
        imported
    } else {
        let bytes = FileBytes::open(path, options.mmap)?;
        match lap::sniff(&bytes) {
            Kind::Gguf => {
                let mut imported = gguf::read_model(path, bytes)?;
                notices = mmproj::attach(&mut imported, path, options)?;
                imported
            }
            _ => {
                refuse_mmproj(path, options, "a .lap file holds its towers itself")?;
                let mut program = lap::from_bytes(bytes)?;
                add_answer_format(&mut program)?;
                if let Some(draft) = &options.draft {
                    program = attach_at(&program, draft, options.mmap)?;
                }
                return Ok(Opened { program, notices });
            }
        }
    };
    let draft = match &options.draft {
        Some(named) => Some(read_draft(named, options.mmap)?),
        None if options.draft_beside => draft_beside(path, &imported, options, &mut notices),
        None => None,
    };
    Ok(Opened { program: assemble(imported, draft)?, notices })
}

fn refuse_mmproj(path: &Path, options: &OpenOptions, why: &str) -> Result<()> {
    match options.mmproj {
        None => Ok(()),
        Some(_) => Err(Error::NotAModel {
            path: path.to_path_buf(),
            what: format!("{why}; an mmproj file goes with a GGUF model only"),
        }),
    }
}

/// The drafter that lies beside a checkpoint, if it can be read and was made for it.
fn draft_beside(
    path: &Path,
    model: &Imported,
    options: &OpenOptions,
    notices: &mut Vec<Notice>,
) -> Option<ImportedDraft> {
    let beside = drafter_path(path)?;
    let why = match read_draft(&beside, options.mmap) {
        Ok(draft) if draft.config.fits(&model.text) => {
            notices.push(Notice::DrafterTaken(beside));
            return Some(draft);
        }
        Ok(_) => "it was made for a model of another size".to_string(),
        Err(e) => e.to_string(),
    };
    notices.push(Notice::DrafterSkipped { path: beside, why });
    None
}

/// Where the drafter of a checkpoint lies, by its name: `gemma-4-E2B-it-assistant` beside
/// `gemma-4-E2B-it`, or the only GGUF file of the same folder that calls itself one.
fn drafter_path(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let name = path.file_name()?.to_str()?;
    if path.is_dir() {
        let beside = path.with_file_name(format!("{name}-assistant"));
        return beside.join("config.json").is_file().then_some(beside);
    }
    let is_drafter = |other: &PathBuf| {
        let name = other.file_name().and_then(|name| name.to_str()).map(str::to_lowercase);
        name.is_some_and(|name| name.ends_with(".gguf") && name.contains("assistant"))
    };
    let files = std::fs::read_dir(path.parent()?).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = files.filter(is_drafter).filter(|other| *other != path);
    found.next().filter(|_| found.next().is_none())
}

pub(crate) fn read_draft(path: &Path, mmap: bool) -> Result<ImportedDraft> {
    if path.is_dir() {
        return hf::read_draft(path, mmap);
    }
    gguf::read_draft(path, FileBytes::open(path, mmap)?)
}

/// Builds the graphs and makes the program.
pub fn assemble(model: Imported, draft: Option<ImportedDraft>) -> Result<Program> {
    let Imported { text, towers, mut weights, mut store, metadata, blobs } = model;
    let mut draft_config = None;
    if let Some(draft) = draft {
        weights.extend(
            draft.weights.into_iter().map(|(name, w)| (format!("{DRAFT_PREFIX}{name}"), w)),
        );
        let which = Which::Prefixed(DRAFT_PREFIX);
        store = Arc::new(JoinedStore { main: store, other: draft.store, which });
        draft_config = Some(draft.config);
    }
    let built = build(&text, draft_config.as_ref(), &towers, &metadata, &weights)?;
    let description =
        Description { metadata, states: built.states, methods: built.methods, weights };
    Ok(Program::new(description, blobs, store)?)
}
