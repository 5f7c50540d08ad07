//! A whole GGUF file as what a Hugging Face folder gives.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lapidary_program::{Blob, FileBytes, Metadata, SamplingDefaults, WeightDecl, blob};

use super::config;
use super::keys::Family;
use super::reader::Gguf;
use super::store::GgufStore;
use super::tensor_names::{Tensors, is_ignorable, tensors_of};
use super::tokenizer::{TokenIds, identity, token_ids, vocabulary};
use super::value::narrow;
use crate::answer::answer_format;
use crate::config::TextConfig;
use crate::config::SAMPLING;
use crate::error::{Error, Result};
use crate::hf_config::unsupported;
use crate::import::{Imported, ImportedDraft, MADE_BY};
use crate::names::{WeightSpec, draft_weights, text_weights};
use crate::towers::Towers;

/// Reads a model.
pub fn read_model(path: &Path, bytes: FileBytes) -> Result<Imported> {
    let file = Gguf::parse(bytes)?;
    let family = family(&file)?;
    if family == Family::Gemma4Assistant {
        return Err(Error::NotAModel {
            path: path.to_path_buf(),
            what: "it is a drafter, which runs only beside its target; give the target's file, and \
                   this one with --draft"
                .into(),
        });
    }
    let text = config::text(&file, family)?;
    let ids = token_ids(&file, text.vocab_size)?;
    let metadata = metadata(&file, path, &text, ids.as_ref())?;
    let mut blobs = BTreeMap::new();
    if let Some(template) = file.text("tokenizer.chat_template")? {
        blobs.insert(blob::CHAT_TEMPLATE.to_string(), template.as_bytes().into());
    }
    let file = Arc::new(file);
    if ids.is_some() {
        blobs.insert(blob::TOKENIZER.to_string(), tokenizer_blob(&file, text.vocab_size));
    }
    let (weights, store) = select(file, &text_weights(&text), &TEXT_NAMES)?;
    let (towers, store) = (Towers::default(), Arc::new(store));
    Ok(Imported { text, towers, weights, store, metadata, blobs })
}

/// Reads a drafter.
pub fn read_draft(path: &Path, bytes: FileBytes) -> Result<ImportedDraft> {
    let file = Gguf::parse(bytes)?;
    if family(&file)? != Family::Gemma4Assistant {
        return Err(Error::NotAModel {
            path: path.to_path_buf(),
            what: "it is not a drafter; those are published as …-assistant".into(),
        });
    }
    let config = config::draft(&file)?;
    let (weights, store) = select(Arc::new(file), &draft_weights(&config), &TEXT_NAMES)?;
    Ok(ImportedDraft { config, weights, store: Arc::new(store) })
}

/// What the file holds, if it is something that runs here.
fn family(file: &Gguf) -> Result<Family> {
    let Some(architecture) = file.text("general.architecture")? else {
        return Err(Error::config("`general.architecture` is missing"));
    };
    let family = match architecture {
        "gemma3" => Family::Gemma3,
        "gemma4" => Family::Gemma4,
        "gemma4-assistant" => Family::Gemma4Assistant,
        "clip" => {
            return Err(Error::Unsupported {
                architecture: architecture.to_string(),
                advice: "it is the image or audio part (mmproj) of a model; give the model's own \
                         GGUF file, and this one with --mmproj"
                    .to_string(),
            });
        }
        other => return Err(unsupported(other)),
    };
    refuse_parts(file)?;
    if file.get("gemma3.rope.global.freq_base").is_some() {
        return Err(Error::config(
            "this file is in Ollama's own dialect of GGUF, which leaves out how positions are \
             scaled; get one that was made for llama.cpp",
        ));
    }
    Ok(family)
}

/// A file that is one of several is not read.
pub(super) fn refuse_parts(file: &Gguf) -> Result<()> {
    match file.uint("split.count")? {
        Some(n) if n > 1 => Err(Error::config(format!(
            "this file is one of {n} parts; join them with `llama-gguf-split --merge`, or get a \
             file that is not split"
        ))),
        _ => Ok(()),
    }
}

/// The file's vocabulary as a `tokenizer.json`. Making it takes longer than all else that opening
/// does, and whoever has kept what follows from it needs only its identity.
fn tokenizer_blob(file: &Arc<Gguf>, vocab_size: u32) -> Blob {
    let file = file.clone();
    Blob::made_by(identity(&file, vocab_size), move || match vocabulary(&file, vocab_size) {
        Ok(Some(v)) => Ok(v.tokenizer_json),
        Ok(None) => Ok(vec![]),
        Err(e) => Err(Arc::new(e)),
    })
}

/// Where weights stand in a kind of file.
pub(super) struct Names<'a> {
    /// The tensors behind a canonical name.
    pub of: &'a dyn Fn(&str) -> Option<Tensors>,
    /// Whether a tensor that no weight uses may be left out.
    pub is_ignorable: &'a dyn Fn(&str) -> bool,
}

/// Where the weights of a model or a drafter stand.
const TEXT_NAMES: Names<'_> = Names { of: &tensors_of, is_ignorable: &is_ignorable };

/// Finds every weight that the configuration needs and checks its shape.
pub(super) fn select(
    file: Arc<Gguf>,
    specs: &[WeightSpec],
    names: &Names<'_>,
) -> Result<(BTreeMap<String, WeightDecl>, GgufStore)> {
    let mut store = GgufStore::new(file);
    let mut weights = BTreeMap::new();
    for spec in specs {
        if let Some(decl) = bind(&mut store, spec, names)? {
            weights.insert(spec.name.clone(), decl);
        }
    }
    // A tensor that is not understood may be a bias or a scale that changes every answer.
    if let Some(stray) = store.unused().find(|t| !(names.is_ignorable)(&t.name)) {
        let what = "it is not part of the model as it is known here; upgrade lapidary, or get \
                    another file";
        return Err(Error::tensor(&stray.name, what));
    }
    Ok((weights, store))
}

/// Binds one weight; `None` if it is absent and may be.
fn bind(
    store: &mut GgufStore,
    spec: &WeightSpec,
    names: &Names<'_>,
) -> Result<Option<WeightDecl>> {
    let has = |store: &GgufStore, name: &str| store.file().tensor(name).is_some();
    let name = match (names.of)(&spec.name) {
        Some(Tensors::One(name)) => name,
        Some(Tensors::OneOrJoined(whole, [first, second])) => {
            if has(store, &first) && !has(store, &whole) {
                let decl = store.bind_joined(&spec.name, [&first, &second])?;
                if decl.shape != spec.shape {
                    let what = format!(
                        "it has shape {:?}, the configuration asks for {:?}",
                        decl.shape, spec.shape
                    );
                    return Err(Error::tensor(&first, what));
                }
                return Ok(Some(decl));
            }
            whole
        }
        None if spec.optional => return Ok(None),
        None => return Err(Error::tensor(&spec.name, "GGUF has no name for it")),
    };
    if spec.optional && !has(store, &name) {
        return Ok(None);
    }
    store.bind_spec(spec, &name).map(Some)
}

fn metadata(
    file: &Gguf,
    path: &Path,
    text: &TextConfig,
    ids: Option<&TokenIds>,
) -> Result<Metadata> {
    let stem = || path.file_stem().map(|s| s.to_string_lossy().into_owned());
    let name = match file.text("general.name")?.filter(|n| !n.is_empty()) {
        Some(name) => name.to_string(),
        None => stem().unwrap_or_else(|| "model".to_string()),
    };
    Ok(Metadata {
        name,
        architecture: text.architecture.clone(),
        made_by: MADE_BY.into(),
        vocab_size: text.vocab_size,
        max_context_len: text.max_position_embeddings,
        bos_id: ids.and_then(|v| v.bos),
        pad_id: ids.and_then(|v| v.pad),
        eos_ids: ids.map(|v| v.eos.clone()).unwrap_or_default(),
        suppress_ids: ids.map(|v| v.suppress.clone()).unwrap_or_default(),
        add_bos: ids.is_some_and(|v| v.add_bos),
        sampling: sampling(file)?,
        media: Default::default(),
        answer: answer_format(&text.architecture),
    })
}

fn sampling(file: &Gguf) -> Result<SamplingDefaults> {
    let mut s = SAMPLING;
    let in_range = |key: &str, max: f64| match file.float(key)? {
        Some(x) if !(0.0..=max).contains(&x) => Err(Error::config(format!("`{key}` is {x}"))),
        x => Ok(x),
    };
    if let Some(t) = in_range("general.sampling.temp", 100.0)? {
        s.temperature = narrow(t);
    }
    if let Some(k) = file.u32("general.sampling.top_k")? {
        s.top_k = k;
    }
    if let Some(p) = in_range("general.sampling.top_p", 1.0)? {
        s.top_p = narrow(p);
    }
    Ok(s)
}
