use std::collections::{BTreeMap, HashMap};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use serde_json::json;

use super::{FORMAT, HASHES, PREFIX, PROGRAM, VERSION, to_safetensors};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::out_file::{Existing, OutFile};
use crate::program::Program;
use crate::weights::{Part, WeightDecl};

const ALIGN: usize = 64;

/// Numbers of a made weight that are asked for at once.
const BLOCK: usize = 8 << 20;
/// Bytes that are written between two words of progress.
const PIECE: usize = 32 << 20;

/// Writes a program in place of what stands at `path`; see [`write_file`].
pub fn write(
    program: &Program,
    path: &Path,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let out = OutFile::create(path, Existing::Replace).map_err(|e| Error::io(path, e))?;
    write_file(program, path, out, progress)
}

/// Writes a program to a file, which has its name, `path`, only when it is whole. Weights are asked for one at a time, and those that are made when
/// they are asked for some rows at a time, all parts of the rows together; each part is written
/// where the header says. `progress` is told the bytes written so far and in all, and says whether
/// to go on.
pub fn write_file(
    program: &Program,
    path: &Path,
    mut temp: OutFile,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let io = |e: std::io::Error| Error::io(path, e);
    let tensors = lay_out(program)?;
    let header = header(&tensors)?;
    let header_len = u64::try_from(header.len()).unwrap_or(u64::MAX);
    temp.write_all(&header_len.to_le_bytes()).map_err(io)?;
    temp.write_all(&header).map_err(io)?;
    let mut out = Spread {
        path,
        file: temp.file(),
        start: header_len.saturating_add(8),
        done: 0,
        total: tensors.iter().fold(0, |n, t| n.saturating_add(t.size)),
        hashes: no_hashes(&tensors),
        progress,
    };
    let mut places: HashMap<(&str, Part), usize> = HashMap::new();
    for (i, tensor) in tensors.iter().enumerate() {
        match &tensor.source {
            Source::Part(weight, part) => drop(places.insert((weight.as_str(), *part), i)),
            Source::Bytes(bytes) => out.put(tensor, bytes)?,
            Source::Hashes => {}
        }
    }
    for (name, decl) in program.weights() {
        let place = |part| places.get(&(name.as_str(), part)).and_then(|i| tensors.get(*i));
        if !write_rows(program, (name, decl), &place, &mut out)? {
            for (part, bytes) in program.store().parts(name, decl)? {
                if let Some(tensor) = place(part) {
                    out.put(tensor, &bytes)?;
                }
            }
        }
        program.store().forget(name);
    }
    if let Some(last) = tensors.last() {
        let hashes = serde_json::to_vec(&out.hashes)?;
        out.put(last, &hashes)?;
    }
    if out.done != out.total {
        let what = "the store did not give all parts of its weights";
        return Err(Error::Program(what.into()));
    }
    temp.finish().map_err(io)
}

/// Writes a weight some rows at a time; `false` if its store does not make rows.
fn write_rows<'t>(
    program: &Program,
    (name, decl): (&str, &WeightDecl),
    place: &dyn Fn(Part) -> Option<&'t Tensor>,
    out: &mut Spread<'_>,
) -> Result<bool> {
    let at_once = BLOCK.checked_div(decl.cols()).unwrap_or(1).max(1);
    let mut open: HashMap<Part, Open<'t>> = HashMap::new();
    for first in (0..decl.rows()).step_by(at_once) {
        let rows = first..decl.rows().min(first.saturating_add(at_once));
        let Some(made) = program.store().make_row_parts(name, decl, rows) else {
            if first == 0 {
                return Ok(false);
            }
            // Whoever makes some rows and not others says why when asked for all.
            drop(program.store().parts(name, decl)?);
            return Err(Error::weight(name, "its store does not make all of its rows"));
        };
        for (part, bytes) in made {
            let Some(tensor) = place(part) else { continue };
            let tensor = open.entry(part).or_insert_with(|| Open::of(tensor));
            out.extend(tensor, &bytes)?;
        }
    }
    open.into_values().try_for_each(|tensor| out.close(tensor))?;
    Ok(true)
}

/// The data section, written in any order.
struct Spread<'a> {
    path: &'a Path,
    file: &'a std::fs::File,
    start: u64,
    done: u64,
    total: u64,
    hashes: BTreeMap<String, String>,
    progress: &'a mut dyn FnMut(u64, u64) -> bool,
}

/// A tensor of which some bytes are written.
struct Open<'t> {
    tensor: &'t Tensor,
    written: u64,
    hasher: blake3::Hasher,
}

impl<'t> Open<'t> {
    fn of(tensor: &'t Tensor) -> Self {
        Open { tensor, written: 0, hasher: blake3::Hasher::new() }
    }
}

impl Spread<'_> {
    fn put(&mut self, tensor: &Tensor, bytes: &[u8]) -> Result<()> {
        let mut open = Open::of(tensor);
        for piece in bytes.chunks(PIECE) {
            self.extend(&mut open, piece)?;
        }
        self.close(open)
    }

    fn extend(&mut self, open: &mut Open<'_>, bytes: &[u8]) -> Result<()> {
        let n = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if n > open.tensor.size.saturating_sub(open.written) {
            return Err(Error::weight(&open.tensor.name, "its store gives too many bytes"));
        }
        let at = self.start.saturating_add(open.tensor.offset).saturating_add(open.written);
        self.file
            .seek(SeekFrom::Start(at))
            .and_then(|_| self.file.write_all(bytes))
            .map_err(|e| Error::io(self.path, e))?;
        open.hasher.update(bytes);
        open.written = open.written.saturating_add(n);
        self.done = self.done.saturating_add(n);
        if (self.progress)(self.done, self.total) { Ok(()) } else { Err(Error::Stopped) }
    }

    fn close(&mut self, open: Open<'_>) -> Result<()> {
        if open.written != open.tensor.size {
            let what = format!("{} bytes instead of {}", open.written, open.tensor.size);
            return Err(Error::weight(&open.tensor.name, what));
        }
        if let Some(hash) = self.hashes.get_mut(&open.tensor.name) {
            *hash = open.hasher.finalize().to_hex().to_string();
        }
        Ok(())
    }
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
    /// Where in the data section.
    offset: u64,
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
                    offset: 0,
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
            offset: 0,
            size,
            source: Source::Bytes(bytes),
        });
    };
    blob(PROGRAM.to_string(), serde_json::to_vec(program.description())?);
    for (name, bytes) in program.blobs() {
        blob(format!("{PREFIX}{name}"), bytes.bytes()?.to_vec());
    }
    tensors.sort_by(|a, b| {
        let align = |t: &Tensor| t.size.trailing_zeros().min(ALIGN.trailing_zeros());
        align(b).cmp(&align(a)).then(b.size.cmp(&a.size)).then_with(|| a.name.cmp(&b.name))
    });
    // As long as it will be when the hashes are known.
    let hashes = serde_json::to_vec(&no_hashes(&tensors))?;
    let size = u64::try_from(hashes.len()).unwrap_or(u64::MAX);
    tensors.push(Tensor {
        name: HASHES.to_string(),
        dtype: DType::U8,
        shape: vec![size],
        offset: 0,
        size,
        source: Source::Hashes,
    });
    let mut offset = 0u64;
    for t in &mut tensors {
        t.offset = offset;
        offset = offset
            .checked_add(t.size)
            .ok_or_else(|| Error::weight(&t.name, "the file is too large"))?;
    }
    Ok(tensors)
}

/// A hash of zeros for every tensor but the hashes.
fn no_hashes(tensors: &[Tensor]) -> BTreeMap<String, String> {
    let all = tensors.iter().filter(|t| !matches!(t.source, Source::Hashes));
    all.map(|t| (t.name.clone(), "0".repeat(64))).collect()
}

fn header(tensors: &[Tensor]) -> Result<Vec<u8>> {
    let mut entries = serde_json::Map::new();
    let info: BTreeMap<&str, String> =
        [("format", FORMAT.to_string()), ("version", VERSION.to_string())].into();
    entries.insert("__metadata__".into(), json!(info));
    for t in tensors {
        let dtype = to_safetensors(t.dtype);
        let end = t.offset.saturating_add(t.size);
        entries.insert(
            t.name.clone(),
            json!({"dtype": dtype, "shape": t.shape, "data_offsets": [t.offset, end]}),
        );
    }
    let mut header = serde_json::to_vec(&entries)?;
    let padded = header.len().saturating_add(8).next_multiple_of(ALIGN).saturating_sub(8);
    header.resize(padded, b' ');
    Ok(header)
}
