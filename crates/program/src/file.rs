//! The bytes of a whole file, mapped or read.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

use crate::error::{Error, Result};

/// The bytes of a whole file.
///
/// A mapped file must not be truncated while it is open: the system answers a read behind the new
/// end with a signal. Files that another process may change are read (`mmap = false`) instead.
pub struct FileBytes(Source);

enum Source {
    Mapped(memmap2::Mmap),
    Read(Vec<u8>),
}

impl FileBytes {
    /// Opens a regular file.
    pub fn open(path: &Path, mmap: bool) -> Result<Self> {
        let io = |e| Error::io(path, e);
        // Looked at before it is opened: opening a pipe would wait for its other end.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            let e = std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file");
            return Err(io(e));
        }
        let mut file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if mmap && meta.len() > 0 {
            // SAFETY: the map is read-only and private to this value; that nobody shortens the
            // file meanwhile is the documented condition of opening with `mmap`.
            #[allow(unsafe_code)]
            let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
            return Ok(FileBytes(Source::Mapped(map)));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        Ok(FileBytes(Source::Read(bytes)))
    }

    /// The first half of a BLAKE3 hash of the bytes, in hexadecimal: a name for their contents.
    pub fn short_hash(&self) -> String {
        blake3::hash(self).to_hex().chars().take(32).collect()
    }

    /// Bytes that are already in memory.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        FileBytes(Source::Read(bytes))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Mapped(map) => map,
            Source::Read(bytes) => bytes,
        }
    }
}
