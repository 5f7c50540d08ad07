//! The files of a checkpoint folder: small JSON files, and the tensors of one or many safetensors
//! files with the notes in their headers. No path leads out of the folder.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use lapidary_program::{DType, FileBytes};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::error::{Error, Result};

/// Configuration files are small; anything else under their name is refused unread.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// The tensors of all files of a checkpoint.
pub(crate) struct Shards {
    pub files: Vec<FileBytes>,
    pub tensors: HashMap<String, Tensor>,
    /// The `__metadata__` of all files.
    pub notes: HashMap<String, String>,
}

/// One tensor as its file declares it.
pub(crate) struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<u64>,
    pub place: Place,
}

/// Where a tensor's bytes stand. Their number follows from its type and shape: safetensors checks.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    file: usize,
    range: Range<usize>,
}

impl Tensor {
    /// The type of the tensor's numbers, if it is one that weights and scales may have.
    pub fn float(&self) -> Option<DType> {
        match self.dtype {
            Dtype::F32 => Some(DType::F32),
            Dtype::F16 => Some(DType::F16),
            Dtype::BF16 => Some(DType::Bf16),
            _ => None,
        }
    }
}

impl Place {
    /// The bytes themselves.
    pub fn bytes<'a>(&self, files: &'a [FileBytes]) -> Option<&'a [u8]> {
        files.get(self.file)?.get(self.range.clone())
    }
}

impl Shards {
    /// Opens `model.safetensors`, or what an index names.
    pub fn open(dir: &Path, mmap: bool) -> Result<Shards> {
        let mut shards = Shards { files: vec![], tensors: HashMap::new(), notes: HashMap::new() };
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
        self.notes.extend(header.metadata().clone().unwrap_or_default());
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

/// The path of a file that must stand in the folder itself. A hub cache keeps links there to the
/// `blobs` folder of the repository, or to the one that all repositories share; no other way out is
/// taken.
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
    let is_named = |p: &Path, is: fn(&str) -> bool| p.file_name().is_some_and(|n| is(&n.to_string_lossy()));
    let snapshots = dir.parent().filter(|p| is_named(p, |n| n == "snapshots"));
    let repo = snapshots.and_then(Path::parent);
    let is_blob = |folder: &Path| target.starts_with(folder.join("blobs"));
    let shared = repo.filter(|p| is_named(p, |n| n.starts_with("models--"))).and_then(Path::parent);
    if target.starts_with(&dir) || repo.is_some_and(is_blob) || shared.is_some_and(is_blob) {
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

/// A JSON file, or `None` if it isn't there.
pub(crate) fn read_json(dir: &Path, name: &str) -> Result<Option<Value>> {
    let Some(bytes) = read_small(dir, name, MAX_CONFIG_BYTES)? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| Error::Json { file: name.to_string(), source })
}

/// A file of bounded size, or `None` if it isn't there.
pub(crate) fn read_small(dir: &Path, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
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
