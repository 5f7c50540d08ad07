//! The bytes of a whole file, mapped, read, or part of the program that runs.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;
use std::sync::OnceLock;

use crate::error::{Error, Result};

/// The bytes of a whole file.
///
/// A mapped file must not be truncated while it is open: the system answers a read after the new
/// end with a signal. Files that another process may change are read (`mmap = false`) instead.
pub struct FileBytes(Source, Option<Identity>, OnceLock<[u8; 32]>);

/// What the system says of a file, apart from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    len: u64,
    modified_nanos: u128,
    number: u64,
    device: u64,
}

enum Source {
    Mapped(memmap2::Mmap),
    Read(Vec<u8>),
    Static(&'static [u8]),
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
            return Ok(FileBytes(Source::Mapped(map), Identity::of(&meta), OnceLock::new()));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        Ok(FileBytes(Source::Read(bytes), Identity::of(&meta), OnceLock::new()))
    }

    /// A hash of what file this is: its length, its time, its number, and samples of its bytes. Cheap
    /// whatever the size; a file that was changed in place has another one, a copy has too. `None`
    /// for bytes that are of no file.
    pub fn fingerprint(&self) -> Option<[u8; 32]> {
        let id = self.1?;
        Some(*self.2.get_or_init(|| self.sampled(id)))
    }

    fn sampled(&self, id: Identity) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for number in [u128::from(id.len), id.modified_nanos, id.number.into(), id.device.into()] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(self.get(..SAMPLE.min(self.len())).unwrap_or_default());
        for i in 1..=N_SAMPLES {
            let start = (self.len() / N_SAMPLES * i).saturating_sub(SAMPLE);
            hasher.update(self.get(start..(start + SAMPLE).min(self.len())).unwrap_or_default());
            self.forget(start..(start + SAMPLE).min(self.len()));
        }
        *hasher.finalize().as_bytes()
    }

    /// The first half of a BLAKE3 hash of the bytes, in hexadecimal: a name for their contents.
    pub fn short_hash(&self) -> String {
        blake3::hash(self).to_hex().chars().take(32).collect()
    }

    /// Gives the pages of some bytes back to the system if they are mapped; they are read again when
    /// they are next looked at. What can't be given back stays.
    pub fn forget(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        if let Source::Mapped(map) = &self.0
            && range.start < range.end
            && range.end <= map.len()
        {
            let (start, end) =
                (range.start.saturating_sub(AROUND), (range.end + AROUND).min(map.len()));
            // SAFETY: the map is read-only and of a file: dropped pages come back as they were,
            // under the same condition as at `open`.
            #[allow(unsafe_code)]
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Where a slice of these bytes stands in them.
    pub fn range_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        let start = (part.as_ptr() as usize).checked_sub(self.as_ptr() as usize)?;
        let end = start.checked_add(part.len())?;
        (end <= self.len()).then_some(start..end)
    }

    /// Bytes that are already in memory.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        FileBytes(Source::Read(bytes), None, OnceLock::new())
    }

    /// Bytes that are part of the running program. They are used where they are, never copied.
    pub fn from_static(bytes: &'static [u8]) -> Self {
        FileBytes(Source::Static(bytes), None, OnceLock::new())
    }
}

/// Reads a file of any kind, if it ends before `most` bytes. A regular file is not even begun if it
/// is longer.
pub fn read_at_most(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let too_long = || {
        let what = format!("it is longer than {} MiB, the most that is read", most >> 20);
        std::io::Error::new(std::io::ErrorKind::FileTooLarge, what)
    };
    let file = File::open(path)?;
    let meta = file.metadata()?;
    if meta.is_file() && meta.len() > most {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).map_or(true, |n| n > most) { Err(too_long()) } else { Ok(bytes) }
}

/// Bytes of one sample of a fingerprint.
const SAMPLE: usize = 4096;
/// The system maps neighbours of a page that is looked at; they are given back with it.
#[cfg(unix)]
const AROUND: usize = 2 << 20;
/// Samples of a fingerprint.
const N_SAMPLES: usize = 64;

impl Identity {
    fn of(meta: &std::fs::Metadata) -> Option<Self> {
        let modified = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
        #[cfg(unix)]
        let (number, device) = {
            use std::os::unix::fs::MetadataExt as _;
            (meta.ino(), meta.dev())
        };
        #[cfg(not(unix))]
        let (number, device) = (0, 0);
        Some(Identity { len: meta.len(), modified_nanos: modified.as_nanos(), number, device })
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Source::Mapped(map) => map,
            Source::Read(bytes) => bytes,
            Source::Static(bytes) => bytes,
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::FileBytes;

    /// Pages of files that this process has in memory.
    fn file_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn forgotten_pages_leave_memory_and_come_back_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let want: Vec<u8> =
            (0..64u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(file.path(), &want).unwrap();
        let bytes = FileBytes::open(file.path(), true).unwrap();
        assert!(*bytes == *want);
        let touched = file_kib();
        bytes.forget(1000..bytes.len() - 1000);
        let forgotten = file_kib();
        assert!(touched > forgotten + (48 << 10), "{touched} KiB, then {forgotten} KiB");
        assert!(*bytes == *want);
        // What is not mapped, or not inside, stays as it is.
        bytes.forget(5..usize::MAX);
        let read = FileBytes::open(file.path(), false).unwrap();
        read.forget(0..read.len());
        assert!(*read == *want);
    }
}
