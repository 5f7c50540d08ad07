//! Packed weights on disk, so that a second start only reads them.
//!
//! A file holds the quantised matrices of one program as they stand in memory, one after another. Its
//! key is a hash of the program's source, of the matrices that are wanted and of this layout, which
//! is the same for all instruction sets. Every segment has a hash: what is damaged, half written or
//! of something else is found out before a byte of it is used, and the weights are packed anew. The
//! hashes are XXH3: the folder is the user's own, so they guard against damage, not against people,
//! and they are checked as fast as memory can be read.
//!
//! The file is mapped, not read: a start copies nothing and takes no fresh memory, and all processes
//! with one model share it. It is never written again once it has its name; who prunes the folder
//! unlinks it, which on a local file system leaves its pages to those that map them.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary_program::cache_file::{CacheHead, head_bytes, read_head, write_whole};
use lapidary_program::{Program, WeightDecl};
use memmap2::Mmap;
use serde_json::{Value, json};
use twox_hash::XxHash3_128;

use crate::matrix::PackedWeight;
use crate::shared::Shared;
use crate::workers::Workers;

/// Changes whenever packed bytes change their meaning.
const LAYOUT: &str = "cpu panels 3";
const KIND: &str = "pack";
/// Bytes that share a hash.
const SEGMENT: usize = 4 << 20;
/// Matrices begin on a cache line.
const ALIGN: usize = 64;
/// Hexadecimal digits of a key.
const KEY: usize = 32;

/// Where the packed weights of one program are, or would be.
pub(crate) struct PackCache<'a> {
    path: PathBuf,
    key: String,
    program: &'a Program,
    /// The matrices that are kept, in order.
    names: Vec<&'a str>,
}

impl<'a> PackCache<'a> {
    /// `None` if nothing can be kept of this program.
    pub(crate) fn of(
        program: &'a Program,
        matrices: impl Iterator<Item = &'a str>,
        folder: Option<&Path>,
    ) -> Option<Self> {
        let (folder, fingerprint) = (folder?, program.store().fingerprint()?);
        let decl = |name: &str| &program.weights()[name];
        let names: Vec<&str> =
            matrices.filter(|name| PackedWeight::is_quantised(decl(name))).collect();
        if names.is_empty() || cfg!(target_endian = "big") {
            return None;
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(LAYOUT.as_bytes()).update(&fingerprint);
        for name in &names {
            let described = serde_json::to_vec(&(name, decl(name))).ok()?;
            hasher.update(&(described.len() as u64).to_le_bytes()).update(&described);
        }
        let key = hasher.finalize().to_hex()[..KEY].to_string();
        Some(PackCache { path: folder.join(format!("{key}.pack")), key, program, names })
    }

    /// Whether a matrix is among those that are kept.
    pub(crate) fn keeps(&self, name: &str) -> bool {
        PackedWeight::is_quantised(self.decl(name))
    }

    fn decl(&self, name: &str) -> &'a WeightDecl {
        &self.program.weights()[name]
    }

    /// The matrices in the order they were named, if a whole and sound file of them is there.
    pub(crate) fn read(&self, workers: &Workers) -> Option<Vec<PackedWeight>> {
        let mut file = File::open(&self.path).ok()?;
        let (head, start) = read_head(&mut file).ok()?;
        if head.kind != KIND || head.key != self.key {
            return None;
        }
        let hashes: Vec<&str> = head
            .contents
            .get("hashes")?
            .as_array()?
            .iter()
            .map(Value::as_str)
            .collect::<Option<_>>()?;
        let lengths: Vec<usize> = self
            .names
            .iter()
            .map(|name| PackedWeight::size_bytes(self.decl(name)) as usize)
            .collect();
        let placed = Placed::new(&lengths);
        let start = usize::try_from(start).ok()?;
        let file_len = usize::try_from(file.metadata().ok()?.len()).ok()?;
        if hashes.len() != placed.segments.len() || file_len != start.checked_add(placed.len)? {
            return None;
        }
        // SAFETY: nobody writes to a file of this folder once it has its name, see above.
        let map = Arc::new(unsafe { Mmap::map(&file) }.ok()?);
        if map.len() != file_len {
            return None;
        }
        let sound = AtomicBool::new(true);
        workers.run(placed.segments.len(), &|_, i| {
            let s = &placed.segments[i];
            let (first, len) = (start + s.offset, s.len);
            let good = sound.load(Ordering::Relaxed)
                && populate(&map, first, len)
                && hash(&map[first..first + len]) == hashes[i];
            if !good {
                sound.store(false, Ordering::Relaxed);
            }
        });
        if !sound.into_inner() {
            return None;
        }
        let matrices = self.names.iter().zip(&placed.offsets).zip(&lengths);
        let matrices: Option<Vec<PackedWeight>> = matrices
            .map(|((name, offset), len)| {
                let first = start + offset;
                let bytes = MappedBytes { map: map.clone(), range: first..first + len };
                PackedWeight::mapped(self.decl(name), bytes)
            })
            .collect();
        // For pruning by age of use; a folder that can't be written is no reason to fail.
        let _ = file.set_modified(std::time::SystemTime::now());
        matrices
    }

    /// Keeps matrices, given in the order they were named.
    pub(crate) fn write(&self, matrices: &[&PackedWeight], workers: &Workers) -> io::Result<()> {
        let lengths: Vec<usize> = matrices.iter().map(|m| m.bytes().len()).collect();
        let placed = Placed::new(&lengths);
        let mut hashes = vec![String::new(); placed.segments.len()];
        let shared = Shared::new(&mut hashes);
        workers.run(placed.segments.len(), &|_, i| {
            let s = &placed.segments[i];
            // SAFETY: each item has a hash of its own.
            let out = unsafe { shared.slice(i..i + 1) };
            out[0] = hash(&matrices[s.matrix].bytes()[s.first..s.first + s.len]);
        });
        let head = CacheHead {
            kind: KIND.into(),
            of: self.program.metadata().name.clone(),
            key: self.key.clone(),
            contents: json!({ "layout": LAYOUT, "hashes": hashes }),
        };
        write_whole(&self.path, |out: &mut dyn Write| {
            out.write_all(&head_bytes(&head))?;
            matrices.iter().try_for_each(|m| {
                let len = m.bytes().len();
                out.write_all(m.bytes())?;
                out.write_all(&[0; ALIGN][..len.next_multiple_of(ALIGN) - len])
            })
        })
    }
}

/// A part of a mapped file.
pub(crate) struct MappedBytes {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

/// Where matrices lie after the head.
struct Placed {
    offsets: Vec<usize>,
    segments: Vec<Segment>,
    len: usize,
}

/// A run of bytes of one matrix.
struct Segment {
    matrix: usize,
    first: usize,
    len: usize,
    /// After the head.
    offset: usize,
}

impl Placed {
    fn new(lengths: &[usize]) -> Self {
        let mut placed = Placed { offsets: Vec::new(), segments: Vec::new(), len: 0 };
        for (matrix, len) in lengths.iter().copied().enumerate() {
            placed.offsets.push(placed.len);
            for first in (0..len).step_by(SEGMENT) {
                let offset = placed.len + first;
                let len = SEGMENT.min(len - first);
                placed.segments.push(Segment { matrix, first, len, offset });
            }
            placed.len += len.next_multiple_of(ALIGN);
        }
        placed
    }
}

/// Maps the pages of a run of bytes at once, where the system can: they would be touched one by one,
/// and a page that can't be read would be a signal. `false` if one can't.
fn populate(map: &Mmap, first: usize, len: usize) -> bool {
    #[cfg(target_os = "linux")]
    if let Err(e) = map.advise_range(memmap2::Advice::PopulateRead, first, len) {
        // A system that does not know this advice says that it is invalid.
        return e.kind() == io::ErrorKind::InvalidInput;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (map, first, len);
    true
}

fn hash(bytes: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(bytes))
}
