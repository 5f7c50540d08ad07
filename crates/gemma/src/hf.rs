//! Hugging Face folders: `config.json`, one or many safetensors files, tokenizer, templates. Folders
//! that MLX or torchao quantised are read as they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use lapidary_program::{DType, Metadata, blob};
use serde_json::Value;

use crate::answer::answer_format;
use crate::config::EmbedScale;
use crate::error::{Error, Result};
use crate::hf_config::{self, HfConfig, ModelConfig, ids};
use crate::hf_weights::{Quantisation, has_packed_head, select};
use crate::import::{Imported, ImportedDraft, MADE_BY};
use crate::hf_media;
use crate::generation;
use crate::mmproj::Notice;
use crate::names::{draft_weights, text_weights};
use crate::shards::{MAX_CONFIG_BYTES, Shards, read_json, read_small};
use crate::towers::{AUDIO_PREFIXES, VISION_PREFIXES, tower_weights};

/// The largest `tokenizer.json` that is read.
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;

/// Reads the folder of a model.
pub fn read_model(dir: &Path, mmap: bool) -> Result<Imported> {
    read_noticing(dir, mmap).map(|(imported, _)| imported)
}

/// The same, with what there is to say of it.
pub(crate) fn read_noticing(dir: &Path, mmap: bool) -> Result<(Imported, Vec<Notice>)> {
    let (config, json) = read_config(dir)?;
    let quantisation = Quantisation::read(&json)?;
    let HfConfig::Model(mut config) = config else {
        return Err(Error::NotAModel {
            path: dir.to_path_buf(),
            what: "it is a drafter, which runs only beside its target; give the target's folder, \
                   and this one with --draft"
                .into(),
        });
    };
    let files = Shards::open(dir, mmap)?;
    if has_packed_head(&files) {
        config.text.tie_word_embeddings = false;
    }
    drop_absent_towers(&mut config, &files);
    let mut specs = text_weights(&config.text);
    specs.extend(tower_weights(&config.towers, config.text.hidden_size));
    let selected = select(files, &quantisation, &specs, TEXT_PREFIXES)?;
    if let Some(table) = selected.quantised_embedding {
        // mlx-lm and mlx-vlm round Gemma 3's factor to bf16 whatever they compute in.
        let to_bf16 = table.by_mlx && config.text.architecture.starts_with("gemma3");
        let dtype = if to_bf16 { DType::Bf16 } else { table.dtype };
        config.text.embed_scale = EmbedScale::Rounded(dtype);
    }
    let mut notices = vec![];
    let metadata = metadata(dir, &config, &json, &mut notices)?;
    let mut blobs = BTreeMap::new();
    if let Some(bytes) = read_small(dir, "tokenizer.json", MAX_TOKENIZER_BYTES)? {
        blobs.insert(blob::TOKENIZER.to_string(), bytes.into());
    }
    if let Some(template) = chat_template(dir)? {
        blobs.insert(blob::CHAT_TEMPLATE.to_string(), template.into_bytes().into());
    }
    let (weights, store) = (selected.weights, Arc::new(selected.store));
    let (text, towers) = (config.text, config.towers);
    Ok((Imported { text, towers, weights, store, metadata, blobs }, notices))
}

/// Text-only extracts of multimodal checkpoints keep the configuration of the towers that they
/// leave out. A tower of which anything is there must be there whole.
fn drop_absent_towers(config: &mut ModelConfig, files: &Shards) {
    let any = |prefixes: &[&str]| {
        files.tensors.keys().any(|name| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            prefixes.iter().any(|p| name.starts_with(p))
        })
    };
    if !any(VISION_PREFIXES) {
        config.drop_vision();
    }
    if !any(AUDIO_PREFIXES) {
        config.towers.audio = None;
    }
}

/// Reads the folder of a drafter.
pub fn read_draft(dir: &Path, mmap: bool) -> Result<ImportedDraft> {
    let (config, json) = read_config(dir)?;
    let quantisation = Quantisation::read(&json)?;
    let HfConfig::Draft(config) = config else {
        return Err(Error::NotAModel {
            path: dir.to_path_buf(),
            what: "it is not a drafter; those are published as …-assistant".into(),
        });
    };
    let files = Shards::open(dir, mmap)?;
    let selected = select(files, &quantisation, &draft_weights(&config), &["model."])?;
    let (weights, store) = (selected.weights, Arc::new(selected.store));
    Ok(ImportedDraft { config: *config, weights, store })
}

/// What stands before the text side's names, in the order they are tried.
const TEXT_PREFIXES: &[&str] =
    &["model.", "model.language_model.", "language_model.model.", "language_model.", ""];

fn read_config(dir: &Path) -> Result<(HfConfig, Value)> {
    match read_json(dir, "config.json")? {
        Some(json) => Ok((hf_config::read(&json)?, json)),
        None => Err(Error::NotAModel {
            path: dir.to_path_buf(),
            what: "the folder has no config.json; give the folder of a Hugging Face checkpoint, a \
                   GGUF file or a .lap file"
                .into(),
        }),
    }
}

fn metadata(
    dir: &Path,
    config: &ModelConfig,
    json: &Value,
    notices: &mut Vec<Notice>,
) -> Result<Metadata> {
    let generation = read_json(dir, "generation_config.json")?.unwrap_or(Value::Null);
    let tokenizer = read_json(dir, "tokenizer_config.json")?.unwrap_or(Value::Null);
    let eos_ids = match generation.get("eos_token_id") {
        Some(v) if !v.is_null() => ids("eos_token_id", v)?,
        _ => config.eos_ids.clone(),
    };
    let suppress_ids = match generation.get("suppress_tokens") {
        Some(v) => ids("suppress_tokens", v)?,
        None => vec![],
    };
    let add_bos = tokenizer.get("add_bos_token").and_then(Value::as_bool).unwrap_or(true);
    Ok(Metadata {
        name: name_of(dir),
        architecture: config.text.architecture.clone(),
        made_by: MADE_BY.into(),
        vocab_size: config.text.vocab_size,
        max_context_len: config.text.max_position_embeddings,
        bos_id: config.bos_id,
        pad_id: config.pad_id,
        eos_ids,
        suppress_ids,
        add_bos: add_bos && config.bos_id.is_some(),
        sampling: generation::sampling(&generation, notices)?,
        media: hf_media::read(dir, json, &config.towers)?,
        answer: answer_format(&config.text.architecture),
    })
}

/// A folder's own name; in a hub cache, where folders are named after commits, the repository's.
fn name_of(dir: &Path) -> String {
    let Ok(dir) = dir.canonicalize() else { return "model".into() };
    let name = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned());
    let repo = dir.parent().filter(|p| name(p).as_deref() == Some("snapshots"));
    let repo = repo.and_then(Path::parent).and_then(name);
    let last = repo.as_deref().and_then(|repo| repo.strip_prefix("models--")?.rsplit("--").next());
    last.map(String::from).or_else(|| name(&dir)).unwrap_or_else(|| "model".into())
}

/// Three places where a chat template may stand.
fn chat_template(dir: &Path) -> Result<Option<String>> {
    if let Some(bytes) = read_small(dir, "chat_template.jinja", MAX_CONFIG_BYTES)? {
        return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
    }
    for file in ["chat_template.json", "tokenizer_config.json"] {
        let Some(json) = read_json(dir, file)? else { continue };
        match json.get("chat_template") {
            Some(Value::String(s)) => return Ok(Some(s.clone())),
            Some(Value::Array(named)) => {
                let default = named
                    .iter()
                    .find(|t| t.get("name").and_then(Value::as_str) == Some("default"))
                    .or(named.first());
                if let Some(s) = default.and_then(|t| t.get("template")).and_then(Value::as_str) {
                    return Ok(Some(s.to_string()));
                }
            }
            _ => {}
        }
    }
    Ok(None)
}
