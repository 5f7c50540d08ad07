//! Small files inside a program: bytes that are here, or that are made when they are wanted.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, Result};
use crate::file::FileBytes;

/// Why a blob could not be made.
pub type BlobError = Arc<dyn std::error::Error + Send + Sync>;

/// A named blob's bytes. Cloning shares them.
#[derive(Clone)]
pub struct Blob(Source);

#[derive(Clone)]
enum Source {
    Here(Arc<dyn AsRef<[u8]> + Send + Sync>),
    Made(Arc<Made>),
}

struct Made {
    identity: [u8; 32],
    make: Box<dyn Fn() -> Result<Vec<u8>, BlobError> + Send + Sync>,
    made: OnceLock<Result<Vec<u8>, BlobError>>,
}

/// A part of a file that stays open.
struct Section {
    file: Arc<FileBytes>,
    range: Range<usize>,
}

impl Blob {
    /// A blob that is made once, when its bytes are first asked for. `identity` is a hash of all
    /// that the bytes follow from, `make` included.
    pub fn made_by(
        identity: [u8; 32],
        make: impl Fn() -> Result<Vec<u8>, BlobError> + Send + Sync + 'static,
    ) -> Self {
        let made = OnceLock::new();
        Blob(Source::Made(Arc::new(Made { identity, make: Box::new(make), made })))
    }

    /// A part of a file. It is empty if the range is not inside.
    pub(crate) fn of_file(file: Arc<FileBytes>, range: Range<usize>) -> Self {
        Blob(Source::Here(Arc::new(Section { file, range })))
    }

    /// The bytes, which are made now if they were not before.
    pub fn bytes(&self) -> Result<&[u8]> {
        match &self.0 {
            Source::Here(bytes) => Ok((**bytes).as_ref()),
            Source::Made(m) => match m.made.get_or_init(|| (m.make)()) {
                Ok(bytes) => Ok(bytes),
                Err(e) => Err(Error::Blob(e.clone())),
            },
        }
    }

    /// A hash of the bytes or of what they are made from: the key under which what is made of them
    /// may be kept. Makes nothing.
    pub fn identity(&self) -> [u8; 32] {
        match &self.0 {
            Source::Here(bytes) => *blake3::hash((**bytes).as_ref()).as_bytes(),
            Source::Made(m) => m.identity,
        }
    }
}

impl AsRef<[u8]> for Section {
    fn as_ref(&self) -> &[u8] {
        self.file.get(self.range.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Blob(Source::Here(Arc::new(bytes)))
    }
}

impl From<&[u8]> for Blob {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Here(bytes) => write!(f, "Blob({} bytes)", (**bytes).as_ref().len()),
            Source::Made(_) => f.write_str("Blob(made when wanted)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::Blob;

    #[test]
    fn a_blob_is_made_once_and_only_when_wanted() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let blob = Blob::made_by([7; 32], move || {
            counted.fetch_add(1, Relaxed);
            Ok(vec![1, 2])
        });
        assert_eq!((blob.identity(), count.load(Relaxed)), ([7; 32], 0));
        let twin = blob.clone();
        assert_eq!((blob.bytes().unwrap(), twin.bytes().unwrap()), (&[1, 2][..], &[1, 2][..]));
        assert_eq!(count.load(Relaxed), 1);
    }

    #[test]
    fn an_error_is_told_each_time_in_its_own_words() {
        let blob = Blob::made_by([0; 32], || Err(Arc::new(std::io::Error::other("no vocabulary"))));
        for _ in 0..2 {
            assert_eq!(blob.bytes().unwrap_err().to_string(), "no vocabulary");
        }
    }

    #[test]
    fn bytes_at_hand_are_known_by_their_hash() {
        let [a, b, c] = [&b"one"[..], b"one", b"two"].map(|bytes| Blob::from(bytes).identity());
        assert!(a == b && a != c);
    }
}
