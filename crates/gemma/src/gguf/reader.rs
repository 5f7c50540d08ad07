//! The container: header, metadata, tensor table, data.

use std::collections::HashMap;
use std::ops::Range;

use lapidary_program::FileBytes;
use lapidary_program::lap::{Kind, sniff};

use super::cursor::{Cursor, damaged};
use super::ggml_type::GgmlType;
use super::value::{ARRAY, Array, TEXT, Value};
use crate::error::{Error, Result};

/// A parsed GGUF file and its bytes.
pub struct Gguf {
    bytes: FileBytes,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// One entry of the tensor table, checked against the file's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// Lengths, outermost first: the reverse of how the file writes them.
    pub shape: Vec<u64>,
    /// How its numbers are written.
    pub ggml_type: GgmlType,
    /// Where its bytes stand in the file.
    pub range: Range<usize>,
}

const OLDEST_VERSION: u32 = 2;
const VERSION: u32 = 3;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMS: u32 = 4;
/// Bytes of the shortest possible metadata entry: a key of one byte and a flag.
const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Bytes of the shortest possible tensor entry: a name of one byte and one length.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 8 + 4 + 8;

impl Gguf {
    /// Parses and checks everything but the numbers in the tensors.
    pub fn parse(bytes: FileBytes) -> Result<Gguf> {
        let mut cursor = Cursor { bytes: &bytes, at: 0 };
        let (n_tensors, n_entries) = header(&mut cursor)?;
        let metadata = entries(&mut cursor, n_entries)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = table(&mut cursor, n_tensors)?;
        place(&mut tensors, cursor.at, alignment, bytes.len())?;
        let tensors: Vec<TensorInfo> = tensors.into_iter().map(|t| t.info).collect();
        let by_name = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Gguf { bytes, metadata, tensors, by_name })
    }

    /// A metadata value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All metadata keys, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// The tensor table, as the file orders it.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The number of a tensor in [`Gguf::tensors`].
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(self.tensor_index(name)?)
    }

    /// The bytes of a tensor.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        self.slice(&tensor.range)
    }

    /// A hash of what file this is.
    pub(super) fn fingerprint(&self) -> Option<[u8; 32]> {
        self.bytes.fingerprint()
    }

    /// Hashes all entries whose keys begin with `prefix`.
    pub(super) fn hash_entries(&self, hasher: &mut blake3::Hasher, prefix: &str) {
        let mut entries: Vec<_> =
            self.metadata.iter().filter(|(key, _)| key.starts_with(prefix)).collect();
        entries.sort_by_key(|(key, _)| *key);
        for (key, value) in entries {
            // Each is followed by what no key or value holds unseen: its length.
            let bytes = match value {
                Value::Text(range) => range.clone(),
                Value::Array(Array::Scalars { bytes, .. }) => bytes.clone(),
                // The pieces stand side by side, the length of each in eight bytes before it.
                Value::Array(Array::Texts(texts)) => match (texts.first(), texts.last()) {
                    (Some(first), Some(last)) => first.start.saturating_sub(8)..last.end,
                    _ => 0..0,
                },
                _ => 0..0,
            };
            let what = match value {
                Value::Array(Array::Scalars { kind, .. }) => format!("{key} {kind:?}"),
                Value::Array(Array::Texts(texts)) => format!("{key} texts {}", texts.len()),
                Value::Array(Array::Nested(arrays)) => format!("{key} arrays {}", arrays.len()),
                Value::Text(_) => format!("{key} text"),
                number => format!("{key} {number:?}"),
            };
            for part in [what.as_bytes(), self.slice(&bytes)] {
                hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
                hasher.update(part);
            }
        }
    }

    /// Gives the pages of a tensor back to the system, and those of the head, of which the
    /// vocabulary is the most: whoever packs tensors has read it.
    pub(super) fn forget(&self, tensor: &TensorInfo) {
        let first = self.tensors.iter().map(|t| t.range.start).min().unwrap_or(0);
        self.bytes.forget(0..first);
        self.bytes.forget(tensor.range.clone());
    }

    /// The bytes of a range that `parse` has checked.
    pub(super) fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    /// Text under a key; `None` if the key is absent.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(range)) => match std::str::from_utf8(self.slice(range)) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(damaged(range.start, format!("`{key}` is not UTF-8"))),
            },
            Some(other) => Err(wrong_kind(key, other, "text")),
        }
    }

    /// An integer that is not negative, of whatever width.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.get(key)
            .map(|v| v.as_u64().ok_or_else(|| wrong_kind(key, v, "an integer of 0 or more")))
            .transpose()
    }

    /// The same, where a `u32` is wanted.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.uint(key)?
            .map(|n| {
                u32::try_from(n).map_err(|_| Error::config(format!("`{key}` is {n}, too large")))
            })
            .transpose()
    }

    /// A float that is a number.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) if x.is_finite() => Ok(Some(*x)),
            Some(Value::Float(x)) => Err(Error::config(format!("`{key}` is {x}"))),
            Some(other) => Err(wrong_kind(key, other, "a float")),
        }
    }

    /// A flag.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(wrong_kind(key, other, "a flag")),
        }
    }

    /// The elements of an array of fixed-size values; `None` if the key is absent.
    pub fn scalars(&self, key: &str) -> Result<Option<Vec<Value>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Scalars { kind, bytes })) => self
                .slice(bytes)
                .chunks_exact(kind.size_bytes())
                .map(|b| kind.decode(b))
                .collect::<Option<Vec<Value>>>()
                .map(Some)
                .ok_or_else(|| damaged(bytes.start, format!("`{key}` has a bad flag"))),
            Some(other) => Err(wrong_kind(key, other, "an array of numbers")),
        }
    }

    /// Where the pieces of an array of text stand; `None` if the key is absent.
    pub(super) fn texts(&self, key: &str) -> Result<Option<&[Range<usize>]>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Texts(texts))) => Ok(Some(texts)),
            // An empty array has whatever type its writer liked.
            Some(Value::Array(array)) if array.is_empty() => Ok(Some(&[])),
            Some(other) => Err(wrong_kind(key, other, "an array of text")),
        }
    }
}

fn wrong_kind(key: &str, value: &Value, want: &str) -> Error {
    Error::config(format!("`{key}` is {}, not {want}", value.kind()))
}

/// Checks magic and version; returns the counts of tensors and metadata entries.
fn header(cursor: &mut Cursor<'_>) -> Result<(usize, usize)> {
    if !cursor.bytes.starts_with(b"GGUF") {
        let what = match sniff(cursor.bytes) {
            // A file shorter than the magic number is a truncated one.
            _ if b"GGUF".starts_with(cursor.bytes) => "the file ends inside its first four bytes",
            Kind::Gguf | Kind::Unknown => "it does not begin with `GGUF`",
            other => other.advice(),
        };
        return Err(damaged(cursor.bytes.len().min(4), what));
    }
    cursor.at = 4;
    let version = cursor.u32("the version")?;
    if (1..=VERSION).contains(&version.swap_bytes()) {
        let what = "it is a big-endian GGUF, which is not read here; get the little-endian file, \
                    or turn it around with llama.cpp's gguf_convert_endian.py";
        return Err(damaged(4, what));
    }
    if !(OLDEST_VERSION..=VERSION).contains(&version) {
        let remedy = if version < OLDEST_VERSION { "convert it again" } else { "upgrade lapidary" };
        return Err(damaged(
            4,
            format!(
                "GGUF version {version}; this build reads {OLDEST_VERSION} and {VERSION}; {remedy}"
            ),
        ));
    }
    let n_tensors = cursor.u64("the number of tensors")?;
    let n_entries = cursor.u64("the number of metadata entries")?;
    let left = cursor.left();
    let need = n_tensors
        .checked_mul(MIN_TENSOR_BYTES)
        .zip(n_entries.checked_mul(MIN_ENTRY_BYTES))
        .and_then(|(a, b)| a.checked_add(b));
    match (need, usize::try_from(n_tensors), usize::try_from(n_entries)) {
        (Some(need), Ok(tensors), Ok(entries)) if need <= left => Ok((tensors, entries)),
        _ => Err(damaged(
            8,
            format!("{n_tensors} tensors and {n_entries} metadata entries in {left} bytes"),
        )),
    }
}

fn entries(cursor: &mut Cursor<'_>, n: usize) -> Result<HashMap<String, Value>> {
    let mut metadata = HashMap::with_capacity(n);
    for _ in 0..n {
        let at = cursor.at;
        let key = cursor.name("a metadata key")?;
        let kind = cursor.u32("the type of a metadata value")?;
        let value = match kind {
            TEXT => Value::Text(cursor.text("a metadata value")?),
            ARRAY => Value::Array(cursor.array(&key, 1)?),
            other => {
                let scalar = cursor.scalar_kind(&key, other)?;
                let at = cursor.at;
                let bytes = cursor.take(scalar.size_bytes(), "a metadata value")?;
                scalar
                    .decode(bytes)
                    .ok_or_else(|| damaged(at, format!("the flag `{key}` is neither 0 nor 1")))?
            }
        };
        if metadata.contains_key(&key) {
            return Err(damaged(at, format!("the metadata key `{key}` stands there twice")));
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<u64> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(DEFAULT_ALIGNMENT) };
    match value.as_u64() {
        Some(n) if n.is_power_of_two() && n <= u64::from(u32::MAX) => Ok(n),
        Some(n) => Err(Error::config(format!("`general.alignment` is {n}, not a power of two"))),
        None => Err(wrong_kind("general.alignment", value, "an integer")),
    }
}

/// A table entry before its place in the file is known.
struct Entry {
    info: TensorInfo,
    /// From the start of the data section.
    offset: u64,
    size_bytes: u64,
    /// Where the entry itself stands, for messages.
    at: usize,
}

fn table(cursor: &mut Cursor<'_>, n: usize) -> Result<Vec<Entry>> {
    let mut tensors = Vec::with_capacity(n);
    let mut names = std::collections::HashSet::with_capacity(n);
    for _ in 0..n {
        let entry = table_entry(cursor)?;
        if !names.insert(entry.info.name.clone()) {
            let what = format!("the tensor `{}` stands there twice", entry.info.name);
            return Err(damaged(entry.at, what));
        }
        tensors.push(entry);
    }
    Ok(tensors)
}

fn table_entry(cursor: &mut Cursor<'_>) -> Result<Entry> {
    let at = cursor.at;
    let name = cursor.name("a tensor's name")?;
    let fail = |at: usize, what: String| Err(damaged(at, format!("tensor `{name}`: {what}")));
    let dims_at = cursor.at;
    let n_dims = cursor.u32("a tensor's rank")?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return fail(dims_at, format!("rank {n_dims} is not between 1 and {MAX_DIMS}"));
    }
    let mut shape = Vec::new();
    for _ in 0..n_dims {
        shape.push(cursor.u64("a tensor's shape")?);
    }
    let row = shape.first().copied().unwrap_or(0);
    shape.reverse();
    let type_at = cursor.at;
    let type_id = cursor.u32("a tensor's type")?;
    let Some(ggml_type) = GgmlType::from_id(type_id) else {
        return fail(type_at, format!("type {type_id} is not known; upgrade lapidary"));
    };
    let (block_len, block_bytes) = ggml_type.block();
    if shape.contains(&0) {
        return fail(dims_at, format!("shape {shape:?} holds nothing"));
    }
    if !row.is_multiple_of(block_len.into()) {
        let kind = ggml_type.name();
        return fail(
            dims_at,
            format!("rows of {row} are not a whole number of {kind} blocks of {block_len}"),
        );
    }
    let size_bytes = shape
        .iter()
        .try_fold(1u64, |n, d| n.checked_mul(*d))
        .map(|n| n.div_euclid(block_len.into()))
        .and_then(|n| n.checked_mul(block_bytes.into()));
    let Some(size_bytes) = size_bytes else {
        return fail(dims_at, format!("shape {shape:?} is too large"));
    };
    let offset = cursor.u64("a tensor's offset")?;
    Ok(Entry { info: TensorInfo { name, shape, ggml_type, range: 0..0 }, offset, size_bytes, at })
}

/// Finds each tensor's bytes: aligned, in the file, side by side with nothing but padding between
/// and after them.
fn place(tensors: &mut [Entry], table_end: usize, alignment: u64, len: usize) -> Result<()> {
    let len_u64 = u64::try_from(len).unwrap_or(u64::MAX);
    let data_start = u64::try_from(table_end).ok().and_then(|n| n.checked_next_multiple_of(alignment));
    let Some(data_start) = data_start else {
        return Err(damaged(table_end, "the data section is past every address"));
    };
    let mut order: Vec<&mut Entry> = tensors.iter_mut().collect();
    order.sort_by_key(|t| t.offset);
    let mut expected = 0u64;
    for t in order {
        let name = &t.info.name;
        let fail = |what: String| Err(damaged(t.at, format!("tensor `{name}`: {what}")));
        if !t.offset.is_multiple_of(alignment) {
            return fail(format!("offset {} is not aligned to {alignment}", t.offset));
        }
        if t.offset < expected {
            return fail(format!("offset {} lies inside another tensor", t.offset));
        }
        if t.offset > expected {
            return fail(format!("offset {} leaves a gap; {expected} is expected", t.offset));
        }
        let start = data_start.checked_add(t.offset);
        let end = start.and_then(|s| s.checked_add(t.size_bytes));
        match (start.map(usize::try_from), end.map(usize::try_from)) {
            (Some(Ok(start)), Some(Ok(end))) if end <= len => t.info.range = start..end,
            _ => {
                let what = format!(
                    "the file ends inside tensor `{name}`: {} bytes at offset {} of the data \
                     section, which has {}; the download or copy did not finish",
                    t.size_bytes,
                    t.offset,
                    len_u64.saturating_sub(data_start)
                );
                return Err(damaged(len, what));
            }
        }
        let padded = t.size_bytes.checked_next_multiple_of(alignment);
        expected = padded.and_then(|n| t.offset.checked_add(n)).unwrap_or(u64::MAX);
    }
    let end = data_start.saturating_add(expected);
    if len_u64 > end {
        let what = format!("{} bytes stand after the last tensor", len_u64.abs_diff(end));
        return Err(damaged(usize::try_from(end).unwrap_or(len), what));
    }
    Ok(())
}
