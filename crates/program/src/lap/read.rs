use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use safetensors::SafeTensors;
use safetensors::tensor::{Metadata as Header, SafeTensorError, TensorInfo};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::sniff::{Kind, sniff};
use super::{FORMAT, HASHES, OLDEST_VERSION, PREFIX, PROGRAM, VERSION, to_safetensors};
use crate::blobs::Blob;
use crate::error::{Error, Result};
use crate::file::FileBytes;
use crate::program::{Description, Program};
use crate::weights::{Part, WeightDecl, WeightStore};

/// Opens a `.lap` file and checks all of it but the numbers in the weights.
pub fn open(path: &Path, mmap: bool) -> Result<Program> {
    from_bytes(FileBytes::open(path, mmap)?)
}

/// The same for bytes that are already here.
pub fn from_bytes(bytes: FileBytes) -> Result<Program> {
    let (data_start, header) = header(&bytes)?;
    let tensors = Tensors { header: header.tensors(), data_start };
    let described = tensors.bytes(&bytes, PROGRAM)?;
    let description: Description =
        serde_json::from_slice(described).map_err(|e| explain(e, described))?;

    let mut ranges = HashMap::new();
    let mut claimed = 0usize;
    for (name, decl) in &description.weights {
        for part in Part::ALL {
            if let Some(range) = tensors.part(name, decl, part)? {
                ranges.insert((name.clone(), part), range);
                claimed = claimed.saturating_add(1);
            }
        }
    }
    let bytes = Arc::new(bytes);
    let mut blobs = BTreeMap::new();
    for (name, info) in &tensors.header {
        if let Some(blob) = name.strip_prefix(PREFIX) {
            claimed = claimed.saturating_add(1);
            if name != PROGRAM && name != HASHES {
                tensors.bytes(&bytes, name)?;
                blobs.insert(blob.to_string(), Blob::of_file(bytes.clone(), tensors.range(info)));
            }
        }
    }
    if claimed != tensors.header.len() {
        let stray = tensors.header.keys().find(|n| !is_claimed(n, &description));
        let stray = stray.map_or("?", String::as_str);
        return Err(Error::weight(stray, "it is stored but not declared"));
    }
    Program::new(description, blobs, Arc::new(LapStore { bytes, ranges }))
}

/// What is wrong with a description; of files that earlier builds of version 1 wrote, what to do.
fn explain(e: serde_json::Error, described: &[u8]) -> Error {
    let fed_places = r#""name":"slots""#.as_bytes();
    if described.windows(fed_places.len()).any(|part| part == fed_places) {
        let what = "an earlier build wrote it, with places of tokens as inputs; export it again";
        return Error::Program(what.into());
    }
    Error::Json(e)
}

/// Recomputes the hash of every tensor; `Err` names the first that is not as it was written. The
/// file is read through a small buffer: pages of a map would count as this process's memory.
pub fn check_hashes(path: &Path) -> Result<()> {
    let bytes = FileBytes::open(path, true)?;
    let mut file = File::open(path).map_err(|e| Error::io(path, e))?;
    check_each(&bytes, &mut |place| hash(&mut file, place).map_err(|e| Error::io(path, e)))
}

/// The same for bytes that are already here.
pub fn check_hashes_in(bytes: &FileBytes) -> Result<()> {
    // Places were checked against the length with the header.
    check_each(bytes, &mut |place| Ok(blake3::hash(bytes.get(place).unwrap_or_default())))
}

fn check_each(
    bytes: &FileBytes,
    hash: &mut dyn FnMut(Range<usize>) -> Result<blake3::Hash>,
) -> Result<()> {
    let (data_start, header) = header(bytes)?;
    let tensors = Tensors { header: header.tensors(), data_start };
    let stored: BTreeMap<String, String> = serde_json::from_slice(tensors.bytes(bytes, HASHES)?)?;
    let mut names: Vec<_> = tensors.header.keys().filter(|name| *name != HASHES).collect();
    names.sort();
    for name in names {
        // Its place was checked against the file's length with the header.
        let place = tensors.header.get(name).map(|info| tensors.range(info)).unwrap_or_default();
        let hash = hash(place)?.to_hex();
        match stored.get(name) {
            Some(written) if written == hash.as_str() => {}
            Some(_) => {
                return Err(Error::weight(name, "its bytes are not those that were written"));
            }
            None => return Err(Error::weight(name, "it was not there when the file was written")),
        }
    }
    Ok(())
}

fn hash(file: &mut File, place: Range<usize>) -> std::io::Result<blake3::Hash> {
    file.seek(SeekFrom::Start(u64::try_from(place.start).unwrap_or(u64::MAX)))?;
    let mut hasher = blake3::Hasher::new();
    let mut part = file.take(u64::try_from(place.len()).unwrap_or(u64::MAX));
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = part.read(&mut buffer)?;
        match buffer.get(..n) {
            Some(read) if n > 0 => drop(hasher.update(read)),
            _ => return Ok(hasher.finalize()),
        }
    }
}

fn header(bytes: &[u8]) -> Result<(usize, Header)> {
    let kind = sniff(bytes);
    // A file too short to carry a magic number may still be a truncated one of ours.
    if bytes.len() > 16 && kind != Kind::Safetensors {
        return Err(Error::NotLap { what: kind.advice().to_string() });
    }
    let (n, header) = SafeTensors::read_metadata(bytes).map_err(|e| container(bytes.len(), &e))?;
    let info = header.metadata().clone().unwrap_or_default();
    let text = bytes.get(8..n.saturating_add(8)).unwrap_or_default();
    let entries = serde_json::from_slice::<CountedKeys>(text)?.0;
    let unique = header.tensors().len().saturating_add(usize::from(header.metadata().is_some()));
    if entries != unique {
        return Err(Error::Container {
            offset: 8,
            what: "a name stands twice in the header".into(),
        });
    }
    if info.get("format").map(String::as_str) != Some(FORMAT) {
        return Err(Error::NotLap { what: Kind::Safetensors.advice().to_string() });
    }
    let found = info.get("version").cloned().unwrap_or_default();
    match found.parse::<u32>() {
        Ok(v) if (OLDEST_VERSION..=VERSION).contains(&v) => {}
        parsed => {
            let remedy = if parsed.is_ok_and(|v| v < OLDEST_VERSION) {
                "export the checkpoint again"
            } else {
                "upgrade lapidary, or export the checkpoint again with this version"
            };
            return Err(Error::Version { found, oldest: OLDEST_VERSION, newest: VERSION, remedy });
        }
    }
    Ok((n.saturating_add(8), header))
}

/// The number of entries of a JSON object, names that stand twice counted twice.
struct CountedKeys(usize);

impl<'de> Deserialize<'de> for CountedKeys {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = CountedKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CountedKeys, A::Error> {
                let mut n = 0usize;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    n = n.saturating_add(1);
                }
                Ok(CountedKeys(n))
            }
        }
        d.deserialize_map(Count)
    }
}

/// Says where a broken container breaks.
fn container(len: usize, e: &SafeTensorError) -> Error {
    let len = u64::try_from(len).unwrap_or(u64::MAX);
    let (offset, what) = match e {
        SafeTensorError::HeaderTooSmall if len == 0 => (0, Kind::Empty.advice().to_string()),
        SafeTensorError::HeaderTooSmall => (len, "the file ends inside the header's length".into()),
        SafeTensorError::HeaderTooLarge => (0, "the header's length is over 100 MB".into()),
        SafeTensorError::InvalidHeaderLength => (len, "the file ends inside its header".into()),
        SafeTensorError::MetadataIncompleteBuffer => {
            (len, "the file's length is not what its header adds up to".into())
        }
        other => (8, format!("the header is damaged: {other}")),
    };
    Error::Container { offset, what }
}

fn is_claimed(tensor: &str, d: &Description) -> bool {
    let weight = tensor.rsplit_once(':').map_or(tensor, |(w, _)| w);
    tensor.starts_with(PREFIX) || d.weights.contains_key(tensor) || d.weights.contains_key(weight)
}

struct Tensors<'a> {
    header: HashMap<String, &'a TensorInfo>,
    data_start: usize,
}

impl Tensors<'_> {
    fn range(&self, info: &TensorInfo) -> Range<usize> {
        let (start, end) = info.data_offsets;
        self.data_start.saturating_add(start)..self.data_start.saturating_add(end)
    }

    fn bytes<'b>(&self, bytes: &'b [u8], name: &str) -> Result<&'b [u8]> {
        self.header
            .get(name)
            .and_then(|info| bytes.get(self.range(info)))
            .ok_or_else(|| Error::Container { offset: 8, what: format!("`{name}` is missing") })
    }

    /// Where a part stands, after checking that it is stored as declared.
    fn part(&self, name: &str, decl: &WeightDecl, part: Part) -> Result<Option<Range<usize>>> {
        let Some((dtype, shape)) = decl.checked_part_layout(name, part)? else { return Ok(None) };
        let stored_as = decl.part_name(name, part);
        let info = self
            .header
            .get(&stored_as)
            .ok_or_else(|| Error::weight(name, format!("`{stored_as}` is missing")))?;
        let got: Vec<u64> =
            info.shape.iter().map(|n| u64::try_from(*n).unwrap_or(u64::MAX)).collect();
        if info.dtype != to_safetensors(dtype) || got != shape {
            return Err(Error::weight(
                name,
                format!(
                    "`{stored_as}` is {:?} {got:?}, its declaration asks for {} {shape:?}",
                    info.dtype,
                    dtype.name()
                ),
            ));
        }
        Ok(Some(self.range(info)))
    }
}

struct LapStore {
    bytes: Arc<FileBytes>,
    ranges: HashMap<(String, Part), Range<usize>>,
}

impl WeightStore for LapStore {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        self.ranges
            .get(&(weight.to_string(), part))
            .and_then(|r| self.bytes.get(r.clone()))
            .map(Cow::Borrowed)
            .ok_or_else(|| Error::weight(weight, format!("{part:?} is not stored")))
    }

    fn fingerprint(&self) -> Option<[u8; 32]> {
        self.bytes.fingerprint()
    }

    fn forget(&self, weight: &str) {
        for part in Part::ALL {
            if let Some(range) = self.ranges.get(&(weight.to_string(), part)) {
                self.bytes.forget(range.clone());
            }
        }
    }
}
