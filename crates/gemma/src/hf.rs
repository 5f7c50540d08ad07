//! Hugging Face folders: `config.json`, one or many safetensors files, tokenizer, templates.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use lapidary_program::{
    DType, FileBytes, Metadata, Modality, Part, SamplingDefaults, WeightDecl, WeightStore, blob,
};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::config::SAMPLING;
use crate::error::{Error, Result};
use crate::hf_config::{self, HfConfig, ModelConfig, ids};
use crate::import::{Imported, ImportedDraft, MADE_BY};
use crate::names::{LM_HEAD, WeightSpec, draft_weights, text_weights};

/// Configuration files are small; anything else under their name is refused unread.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// The largest `tokenizer.json` that is read.
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;

/// Reads the folder of a model.
pub fn read_model(dir: &Path, mmap: bool) -> Result<Imported> {
    let HfConfig::Model(config) = read_config(dir)? else {
        return Err(Error::NotAModel {
            path: dir.to_path_buf(),
            what: "it is a drafter, which runs only beside its target; give the target's folder, \
                   and this one with --draft"
                .into(),
        });
    };
    let files = Shards::open(dir, mmap)?;
    let (weights, store) = select(files, &text_weights(&config.text), TEXT_PREFIXES)?;
    let metadata = metadata(dir, &config)?;
    let mut blobs = BTreeMap::new();
    if let Some(bytes) = read_small(dir, "tokenizer.json", MAX_TOKENIZER_BYTES)? {
        blobs.insert(blob::TOKENIZER.to_string(), Arc::from(bytes));
    }
    if let Some(template) = chat_template(dir)? {
        blobs.insert(blob::CHAT_TEMPLATE.to_string(), Arc::from(template.into_bytes()));
    }
    Ok(Imported { text: config.text, weights, store: Arc::new(store), metadata, blobs })
}

/// Reads the folder of a drafter.
pub fn read_draft(dir: &Path, mmap: bool) -> Result<ImportedDraft> {
    let HfConfig::Draft(config) = read_config(dir)? else {
        return Err(Error::NotAModel {
            path: dir.to_path_buf(),
            what: "it is not a drafter; those are published as …-assistant".into(),
        });
    };
    let files = Shards::open(dir, mmap)?;
    let (weights, store) = select(files, &draft_weights(&config), &["model."])?;
    Ok(ImportedDraft { config: *config, weights, store: Arc::new(store) })
}

/// What stands before the text side's names, in the order they are tried.
const TEXT_PREFIXES: &[&str] =
    &["model.", "model.language_model.", "language_model.model.", "language_model.", ""];

fn read_config(dir: &Path) -> Result<HfConfig> {
    match read_small(dir, "config.json", MAX_CONFIG_BYTES)? {
        Some(bytes) => hf_config::parse(&bytes),
        None => Err(Error::NotAModel {
            path: dir.to_path_buf(),
            what: "the folder has no config.json; give the folder of a Hugging Face checkpoint, a \
                   GGUF file or a .lap file"
                .into(),
        }),
    }
}

/// Finds every weight that the configuration needs, under whichever prefix the file uses.
fn select(
    files: Shards,
    specs: &[WeightSpec],
    prefixes: &[&str],
) -> Result<(BTreeMap<String, WeightDecl>, HfStore)> {
    let prefix = prefixes
        .iter()
        .find(|p| files.tensors.contains_key(&format!("{p}embed_tokens.weight")))
        .copied()
        .unwrap_or("model.");
    let mut weights = BTreeMap::new();
    let mut places = HashMap::new();
    for spec in specs {
        let names = candidates(&spec.name, prefix);
        let found = names.iter().find_map(|n| files.tensors.get(n).map(|t| (n, t)));
        let Some((name, tensor)) = found else {
            if spec.optional {
                continue;
            }
            return Err(missing(&files, &names, &spec.name));
        };
        if tensor.shape != spec.shape {
            let what = format!(
                "it has shape {:?}, the configuration asks for {:?}",
                tensor.shape, spec.shape
            );
            return Err(Error::tensor(name, what));
        }
        let dtype = match tensor.dtype {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::F16 => DType::F16,
            safetensors::Dtype::BF16 => DType::Bf16,
            safetensors::Dtype::I64 if spec.name.ends_with("token_ordering") => DType::I64,
            other => {
                let what = format!("its type {other:?} is not read; F32, F16 and BF16 are");
                return Err(Error::tensor(name, what));
            }
        };
        weights.insert(spec.name.clone(), WeightDecl::dense(spec.shape.clone(), dtype));
        places.insert(spec.name.clone(), tensor.place.clone());
    }
    Ok((weights, HfStore { files: files.files, places }))
}

/// The names under which a canonical name may stand.
fn candidates(canonical: &str, prefix: &str) -> Vec<String> {
    match canonical.strip_prefix("model.") {
        Some(rest) => vec![format!("{prefix}{rest}")],
        None if canonical == LM_HEAD => {
            vec![canonical.to_string(), format!("language_model.{canonical}")]
        }
        None => vec![canonical.to_string()],
    }
}

fn missing(files: &Shards, names: &[String], canonical: &str) -> Error {
    let name = names.first().map_or(canonical, String::as_str);
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    let quantised = files.tensors.contains_key(&format!("{stem}.scales"))
        || files.tensors.contains_key(&format!("{name}_packed"));
    let what = if quantised {
        "it is quantised in a way that is not read yet; give the bf16 checkpoint or a GGUF file"
    } else {
        "it is missing"
    };
    Error::tensor(name, what)
}

fn metadata(dir: &Path, config: &ModelConfig) -> Result<Metadata> {
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
    let name = dir.canonicalize().ok().and_then(|p| p.file_name().map(|n| n.to_os_string()));
    Ok(Metadata {
        name: name.map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned()),
        architecture: config.text.architecture.clone(),
        made_by: MADE_BY.into(),
        vocab_size: config.text.vocab_size,
        max_context_len: config.text.max_position_embeddings,
        bos_id: config.bos_id,
        pad_id: config.pad_id,
        eos_ids,
        suppress_ids,
        add_bos: add_bos && config.bos_id.is_some(),
        sampling: sampling(&generation)?,
        modalities: Vec::<Modality>::new(),
    })
}

fn sampling(generation: &Value) -> Result<SamplingDefaults> {
    let mut s = SAMPLING;
    let number = |key: &str| generation.get(key).and_then(Value::as_f64);
    if generation.get("do_sample").and_then(Value::as_bool) == Some(false) {
        s.temperature = 0.0;
    } else if let Some(t) = number("temperature") {
        s.temperature = narrow(t);
    }
    if let Some(k) = generation.get("top_k").and_then(Value::as_u64) {
        s.top_k = u32::try_from(k).map_err(|_| Error::config(format!("top_k is {k}")))?;
    }
    if let Some(p) = number("top_p") {
        s.top_p = narrow(p);
    }
    Ok(s)
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

fn read_json(dir: &Path, name: &str) -> Result<Option<Value>> {
    let Some(bytes) = read_small(dir, name, MAX_CONFIG_BYTES)? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| Error::Json { file: name.to_string(), source })
}

/// A file of bounded size, or `None` if it isn't there.
fn read_small(dir: &Path, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let path = dir.join(name);
    let io = |source| Error::Io { path: path.clone(), source };
    let meta = match std::fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(io)?,
    };
    if !meta.is_file() {
        return Err(Error::config(format!("{name} is not a regular file; it is not read")));
    }
    if meta.len() > limit {
        let n = meta.len();
        return Err(Error::config(format!("{name} has {n} bytes, more than the {limit} that are read")));
    }
    let file = std::fs::File::open(inside(dir, name)?).map_err(io)?;
    let mut bytes = Vec::new();
    // The file may grow meanwhile.
    file.take(limit).read_to_end(&mut bytes).map_err(io)?;
    Ok(Some(bytes))
}

/// The tensors of all files of a checkpoint.
struct Shards {
    files: Vec<FileBytes>,
    tensors: HashMap<String, Tensor>,
}

struct Tensor {
    dtype: safetensors::Dtype,
    shape: Vec<u64>,
    place: Place,
}

#[derive(Clone)]
struct Place {
    file: usize,
    range: Range<usize>,
}

impl Shards {
    fn open(dir: &Path, mmap: bool) -> Result<Shards> {
        let mut shards = Shards { files: vec![], tensors: HashMap::new() };
        // As transformers does: one file comes before an index, which may be left from before.
        if dir.join("model.safetensors").exists() {
            shards.add(&inside(dir, "model.safetensors")?, mmap)?;
            return Ok(shards);
        }
        let Some(index) = read_json(dir, "model.safetensors.index.json")? else {
            return Err(no_weights(dir));
        };
        for name in shard_names(&index)? {
            shards.add(&inside(dir, &name)?, mmap)?;
        }
        Ok(shards)
    }

    fn add(&mut self, path: &Path, mmap: bool) -> Result<()> {
        let bytes = FileBytes::open(path, mmap)?;
        let kind = lapidary_program::lap::sniff(&bytes);
        let damaged = |what: String| Error::Safetensors { path: path.to_path_buf(), what };
        let (header_len, header) = SafeTensors::read_metadata(&bytes).map_err(|e| match kind {
            lapidary_program::lap::Kind::Safetensors => damaged(e.to_string()),
            other => damaged(other.advice().to_string()),
        })?;
        let data_start = header_len.saturating_add(8);
        let file = self.files.len();
        for (name, info) in header.tensors() {
            let (start, end) = info.data_offsets;
            let range = data_start.saturating_add(start)..data_start.saturating_add(end);
            let shape = info.shape.iter().map(|n| u64::try_from(*n).unwrap_or(u64::MAX)).collect();
            let tensor = Tensor { dtype: info.dtype, shape, place: Place { file, range } };
            if self.tensors.insert(name.clone(), tensor).is_some() {
                return Err(Error::tensor(&name, "it stands in two files"));
            }
        }
        self.files.push(bytes);
        Ok(())
    }
}

/// The files that an index names, each once.
fn shard_names(index: &Value) -> Result<Vec<String>> {
    let map = index
        .get("weight_map")
        .and_then(Value::as_object)
        .ok_or_else(|| Error::config("model.safetensors.index.json has no weight_map"))?;
    let mut names: Vec<String> = Vec::new();
    for (tensor, file) in map {
        let file = file
            .as_str()
            .ok_or_else(|| Error::tensor(tensor, "the index does not name its file"))?;
        names.push(file.to_string());
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// The path of a file that must stand in the folder itself. A hub cache keeps links to its own
/// `blobs` folder there; no other way out is taken.
fn inside(dir: &Path, name: &str) -> Result<PathBuf> {
    let refuse = |why: &str| {
        Err(Error::Config(format!("the checkpoint names the file `{name}`, {why}; it is not read")))
    };
    let mut components = Path::new(name).components();
    let plain = matches!(components.next(), Some(Component::Normal(_)));
    if !plain || components.next().is_some() || name.contains(['/', '\\', '\0']) {
        return refuse("which is not a plain file name");
    }
    let path = dir.join(name);
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    };
    let target = path.canonicalize().map_err(io(&path))?;
    let dir = dir.canonicalize().map_err(io(dir))?;
    let cache = dir
        .parent()
        .filter(|p| p.file_name().is_some_and(|n| n == "snapshots"))
        .and_then(Path::parent)
        .map(|repo| repo.join("blobs"));
    if target.starts_with(&dir) || cache.is_some_and(|blobs| target.starts_with(blobs)) {
        Ok(path)
    } else {
        refuse("a link that leads out of the folder")
    }
}

fn no_weights(dir: &Path) -> Error {
    let pickles = ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth"];
    let what = match pickles.iter().find(|p| dir.join(p).exists()) {
        Some(pickle) => format!(
            "it holds only `{pickle}`, a pickle, which can run code when it is opened and is never \
             read here; get the safetensors form of the checkpoint"
        ),
        None => "it has no model.safetensors and no model.safetensors.index.json".to_string(),
    };
    Error::NotAModel { path: dir.to_path_buf(), what }
}

struct HfStore {
    files: Vec<FileBytes>,
    places: HashMap<String, Place>,
}

impl WeightStore for HfStore {
    fn part(&self, weight: &str, part: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        let place = self.places.get(weight).filter(|_| part == Part::Data);
        place
            .and_then(|p| self.files.get(p.file)?.get(p.range.clone()))
            .map(Cow::Borrowed)
            .ok_or_else(|| lapidary_program::Error::Weight {
                weight: weight.to_string(),
                what: format!("{part:?} is not stored"),
            })
    }
}

#[allow(clippy::as_conversions)]
fn narrow(x: f64) -> f32 {
    x as f32
}
