//! Files that hold what can be made again: packed weights, compiled tokenizers.
//!
//! Each begins with a head that says what it is of, so that a person can list and prune a folder of
//! them. A file appears under its name only when it is whole; readers check its contents against
//! hashes of their own and make the thing anew if anything is amiss.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::file::FileBytes;

const MAGIC: &[u8; 8] = b"LAPCACHE";
/// Heads are padded to a multiple of this, so that what follows is aligned.
const ALIGN: usize = 64;
/// The longest head that is read.
const MAX_HEAD: u32 = 1 << 24;

/// What a cache file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheHead {
    /// `pack` or `tokenizer`.
    pub kind: String,
    /// The model's name, for people.
    pub of: String,
    /// What it was made from and how, as a hash in hexadecimal.
    pub key: String,
    /// What its kind needs to read the rest.
    #[serde(default)]
    pub contents: serde_json::Value,
}

/// The bytes that a file with this head begins with.
pub fn head_bytes(head: &CacheHead) -> Vec<u8> {
    let json = serde_json::to_vec(head).unwrap_or_default();
    let mut bytes = MAGIC.to_vec();
    let fixed = MAGIC.len() + 4;
    let padded = (fixed + json.len()).next_multiple_of(ALIGN) - fixed;
    bytes.extend(u32::try_from(padded).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(&json);
    bytes.resize(fixed + padded, b' ');
    bytes
}

/// Reads a head; returns it with its length in bytes.
pub fn read_head(from: &mut impl Read) -> io::Result<(CacheHead, u64)> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a cache file");
    let mut fixed = [0u8; 12];
    from.read_exact(&mut fixed)?;
    let len = fixed
        .strip_prefix(MAGIC)
        .and_then(|len| Some(u32::from_le_bytes(len.try_into().ok()?)))
        .filter(|len| *len <= MAX_HEAD)
        .ok_or_else(invalid)?;
    let mut json = Vec::new();
    from.take(u64::from(len)).read_to_end(&mut json)?;
    let head = serde_json::from_slice(&json).map_err(|_| invalid())?;
    Ok((head, u64::from(len) + fixed.len() as u64))
}

/// Writes a file under another name in the same folder and gives it its name when it is whole.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = folder.join(format!(".{name}.{}-{n}.partial", std::process::id()));
    let written = File::create_new(&partial).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        write(&mut out)?;
        out.flush()?;
        fs::rename(&partial, path)
    });
    if written.is_err() {
        // Nothing is lost if this fails too: the name says that it is partial.
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Notes that a file was used, for whoever prunes by age. Writes at most once a day.
pub fn mark_used(path: &Path) {
    let is_old = |meta: fs::Metadata| {
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok());
        age.is_some_and(|age| age > Duration::from_secs(24 * 3600))
    };
    if fs::metadata(path).is_ok_and(is_old)
        && let Ok(file) = File::options().append(true).open(path)
    {
        // A file that can't be marked is used all the same.
        let _ = file.set_modified(SystemTime::now());
    }
}

/// Files that are kept between starts, by name: in a folder, or wherever there are no folders.
pub trait KeptFiles {
    /// A file's bytes; `None` if there is none of at most this length.
    fn open(&self, name: &str, max_bytes: u64) -> Option<FileBytes>;

    /// Notes that a file was of use.
    fn mark_used(&self, name: &str);

    /// Keeps a file of these parts, one after another.
    fn keep(&self, name: &str, parts: &[&[u8]]) -> io::Result<()>;
}

/// Kept files below a folder. A file there is never written again once it has its name, so it may be
/// mapped.
#[derive(Clone, Debug)]
pub struct CacheFolder(pub PathBuf);

impl KeptFiles for CacheFolder {
    fn open(&self, name: &str, max_bytes: u64) -> Option<FileBytes> {
        let path = self.0.join(name);
        fs::metadata(&path).ok().filter(|m| m.is_file() && m.len() <= max_bytes)?;
        FileBytes::open(&path, true).ok()
    }

    fn mark_used(&self, name: &str) {
        mark_used(&self.0.join(name));
    }

    fn keep(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        write_whole(&self.0.join(name), |out| parts.iter().try_for_each(|part| out.write_all(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheHead, head_bytes, read_head, write_whole};

    fn head() -> CacheHead {
        let contents = serde_json::json!({ "weights": [1, 2, 3] });
        CacheHead { kind: "pack".into(), of: "a model".into(), key: "00ff".into(), contents }
    }

    #[test]
    fn heads_round_trip_and_end_on_a_line() {
        let bytes = head_bytes(&head());
        assert_eq!(bytes.len() % 64, 0);
        let (read, len) = read_head(&mut bytes.as_slice()).unwrap();
        assert_eq!((read, len), (head(), bytes.len() as u64));
    }

    #[test]
    fn damaged_heads_are_errors() {
        let bytes = head_bytes(&head());
        for n in 0..bytes.len() {
            let cut = &bytes[..n];
            // Cut padding still leaves a whole head.
            let json_ends = bytes.iter().rposition(|b| *b == b'}').unwrap() + 1;
            assert_eq!(read_head(&mut &*cut).is_ok(), n >= json_ends, "{n} bytes");
        }
        let mut long = bytes.clone();
        long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(read_head(&mut long.as_slice()).is_err());
    }

    #[test]
    fn a_file_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/name");
        let fail = |out: &mut dyn std::io::Write| {
            out.write_all(b"half")?;
            Err(std::io::Error::other("full"))
        };
        assert!(write_whole(&path, fail).is_err());
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
        write_whole(&path, |out| out.write_all(b"whole")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
    }
}
