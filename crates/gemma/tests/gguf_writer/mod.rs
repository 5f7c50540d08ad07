//! Writes GGUF files, well-formed unless a test breaks them on purpose.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::Write as _;
use std::path::PathBuf;

use lapidary_program::FileBytes;

/// Type numbers of metadata values.
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;

/// A file in the making.
#[derive(Clone)]
pub struct Writer {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: u64,
    pub entries: Vec<Vec<u8>>,
    pub tensors: Vec<Tensor>,
    pub tail: Vec<u8>,
}

/// A tensor of a file; `offset` overrides the right one.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub type_id: u32,
    pub bytes: Vec<u8>,
    pub offset: Option<u64>,
}

impl Default for Writer {
    fn default() -> Self {
        Writer {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            entries: vec![],
            tensors: vec![],
            tail: vec![],
        }
    }
}

pub fn text(s: impl AsRef<[u8]>) -> Vec<u8> {
    let s = s.as_ref();
    [&(s.len() as u64).to_le_bytes()[..], s].concat()
}

impl Writer {
    pub fn raw(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.entries.push([&text(key)[..], &type_id.to_le_bytes(), value].concat());
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, U32, &value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, F32, &value.to_le_bytes())
    }

    pub fn flag(self, key: &str, value: bool) -> Self {
        self.raw(key, BOOL, &[u8::from(value)])
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, TEXT, &text(value))
    }

    pub fn array(self, key: &str, type_id: u32, elements: &[Vec<u8>]) -> Self {
        let head = [&type_id.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes()].concat();
        self.raw(key, ARRAY, &[head, elements.concat()].concat())
    }

    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        self.array(key, TEXT, &values.iter().map(text).collect::<Vec<_>>())
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        self.array(key, I32, &values.iter().map(|v| v.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        self.array(key, F32, &values.iter().map(|v| v.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    pub fn flags(self, key: &str, values: &[bool]) -> Self {
        self.array(key, BOOL, &values.iter().map(|v| vec![u8::from(*v)]).collect::<Vec<_>>())
    }

    /// Adds a tensor; `dims` innermost first, as the file has them.
    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, bytes: Vec<u8>) -> Self {
        let (name, dims) = (name.to_string(), dims.to_vec());
        self.tensors.push(Tensor { name, dims, type_id, bytes, offset: None });
        self
    }

    /// Adds an F32 tensor.
    pub fn floats(self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        self.tensor(name, dims, 0, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// Everything before the data, unpadded.
    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        out.extend(self.entries.concat());
        let mut offset = 0u64;
        for t in &self.tensors {
            out.extend(text(&t.name));
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.type_id.to_le_bytes());
            out.extend(t.offset.unwrap_or(offset).to_le_bytes());
            offset += (t.bytes.len() as u64).next_multiple_of(self.alignment);
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        let pad = |out: &mut Vec<u8>| {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        };
        if !self.tensors.is_empty() {
            pad(&mut out);
        }
        for t in &self.tensors {
            out.extend(&t.bytes);
            pad(&mut out);
        }
        out.extend(&self.tail);
        out
    }

    pub fn file(&self) -> FileBytes {
        FileBytes::from_vec(self.bytes())
    }
}

/// The project's `testdata` folder.
pub fn testdata() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

/// The real Gemma 3 270M, if the environment says where it is.
pub fn gemma3_270m() -> Option<PathBuf> {
    let path = std::env::var_os("LAPIDARY_GEMMA3_270M").map(PathBuf::from);
    if path.is_none() {
        _ = writeln!(
            std::io::stderr(),
            "SKIPPED: set LAPIDARY_GEMMA3_270M to the file of testdata/fetch_270m.py"
        );
    }
    path
}
