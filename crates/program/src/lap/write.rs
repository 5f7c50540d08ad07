use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;

use super::{FORMAT, HASHES, PREFIX, PROGRAM, VERSION, to_safetensors};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::program::Program;
use crate::weights::Part;

const ALIGN: usize = 64;

/// Writes a program to a temporary file beside `path` and renames it, so that no half file ever
/// stands under the final name. `progress` is told the bytes written so far and in all.
pub fn write(program: &Program, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let io = |e: std::io::Error| Error::io(path, e);
    let tensors = lay_out(program)?;
    let total = tensors.iter().fold(0u64, |n, t| n.saturating_add(t.size));
    let header = header(&tensors)?;

    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let mut temp = tempfile::Builder::new()
        .prefix(".lapidary-")
        .suffix(".tmp")
        .tempfile_in(folder)
        .map_err(io)?;
    {
        let mut out = BufWriter::with_capacity(1 << 20, temp.as_file_mut());
        let n = u64::try_from(header.len()).unwrap_or(u64::MAX);
        out.write_all(&n.to_le_bytes()).map_err(io)?;
        out.write_all(&header).map_err(io)?;
        let mut hashes: Vec<u8> = Vec::new();
        let mut done = 0u64;
        for tensor in &tensors {
            let bytes = match &tensor.source {
                Source::Part(weight, part) => program.store().part(weight, *part)?,
                Source::Bytes(bytes) => bytes.into(),
                Source::Hashes => hashes.as_slice().into(),
            };
            if u64::try_from(bytes.len()).ok() != Some(tensor.size) {
                let what = format!("{} bytes instead of {}", bytes.len(), tensor.size);
                return Err(Error::weight(&tensor.name, what));
            }
            out.write_all(&bytes).map_err(io)?;
            done = done.saturating_add(tensor.size);
            progress(done, total);
            let hash = (!matches!(tensor.source, Source::Hashes)).then(|| blake3::hash(&bytes));
            drop(bytes);
            if let Some(hash) = hash {
                hashes.extend_from_slice(hash.as_bytes());
            }
        }
        out.flush().map_err(io)?;
    }
    temp.as_file().sync_all().map_err(io)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A temporary file is private; the finished one is as readable as any other.
        let mode = std::fs::Permissions::from_mode(0o644);
        temp.as_file().set_permissions(mode).map_err(io)?;
    }
    temp.persist(path).map_err(|e| io(e.error))?;
    Ok(())
}

enum Source {
    Part(String, Part),
    Bytes(Vec<u8>),
    Hashes,
}

struct Tensor {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    size: u64,
    source: Source,
}

/// All tensors in file order: the best aligned first, the larger first among those, hashes last.
fn lay_out(program: &Program) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    for (name, decl) in program.weights() {
        for part in Part::ALL {
            if let Some((dtype, shape)) = decl.checked_part_layout(name, part)? {
                tensors.push(Tensor {
                    name: decl.part_name(name, part),
                    dtype,
                    shape,
                    size: decl.part_bytes(part),
                    source: Source::Part(name.clone(), part),
                });
            }
        }
    }
    let mut blob = |name: String, mut bytes: Vec<u8>| {
        // JSON and templates may be padded with spaces; other blobs stay as they are.
        if name.ends_with(".json") {
            bytes.resize(bytes.len().next_multiple_of(ALIGN), b' ');
        }
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        tensors.push(Tensor {
            name,
            dtype: DType::U8,
            shape: vec![size],
            size,
            source: Source::Bytes(bytes),
        });
    };
    blob(PROGRAM.to_string(), serde_json::to_vec(program.description())?);
    for (name, bytes) in program.blobs() {
        blob(format!("{PREFIX}{name}"), bytes.to_vec());
    }
    tensors.sort_by(|a, b| {
        let align = |t: &Tensor| t.size.trailing_zeros().min(ALIGN.trailing_zeros());
        align(b).cmp(&align(a)).then(b.size.cmp(&a.size)).then_with(|| a.name.cmp(&b.name))
    });
    let n = u64::try_from(tensors.len()).unwrap_or(u64::MAX);
    tensors.push(Tensor {
        name: HASHES.to_string(),
        dtype: DType::U8,
        shape: vec![n, 32],
        size: n.saturating_mul(32),
        source: Source::Hashes,
    });
    Ok(tensors)
}

fn header(tensors: &[Tensor]) -> Result<Vec<u8>> {
    let mut entries = serde_json::Map::new();
    let info: BTreeMap<&str, String> =
        [("format", FORMAT.to_string()), ("version", VERSION.to_string())].into();
    entries.insert("__metadata__".into(), json!(info));
    let mut offset = 0u64;
    for t in tensors {
        let end = offset.checked_add(t.size).ok_or_else(|| Error::weight(&t.name, "too large"))?;
        let dtype = to_safetensors(t.dtype);
        entries.insert(
            t.name.clone(),
            json!({"dtype": dtype, "shape": t.shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut header = serde_json::to_vec(&entries)?;
    let padded = header.len().saturating_add(8).next_multiple_of(ALIGN).saturating_sub(8);
    header.resize(padded, b' ');
    Ok(header)
}
