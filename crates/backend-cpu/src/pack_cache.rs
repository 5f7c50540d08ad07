//! Packed weights on disk, so that a second start only reads them.
//!
//! A file holds the quantised matrices of one program as they stand in memory, one after another. Its
//! key is a hash of the program's source, of the matrices that are wanted and of this layout, which
//! is the same for all instruction sets. Every segment has a hash: what is damaged, half written or
//! of something else is found out before a byte of it is used, and the weights are packed anew. The
//! hashes are XXH3: the folder is the user's own, so they guard against damage, not against people,
//! and they are checked as fast as memory can be read.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary_program::cache_file::{CacheHead, head_bytes, read_head, write_whole};
use lapidary_program::{Program, WeightDecl};
use serde_json::{Value, json};
use twox_hash::XxHash3_128;

use crate::matrix::PackedWeight;
use crate::shared::Shared;
use crate::workers::Workers;

/// Changes whenever packed bytes change their meaning.
const LAYOUT: &str = "cpu panels 1";
const KIND: &str = "pack";
/// Bytes that share a hash.
const SEGMENT: usize = 4 << 20;
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
        let mut matrices: Vec<PackedWeight> = Vec::with_capacity(self.names.len());
        for name in &self.names {
            matrices.push(PackedWeight::empty(self.decl(name)).ok()??);
        }
        let lengths: Vec<usize> = matrices.iter().map(|m| m.bytes().len()).collect();
        let segments = segments(&lengths);
        let total: usize = lengths.iter().sum();
        if hashes.len() != segments.len() || file.metadata().ok()?.len() != start + total as u64 {
            return None;
        }
        let shared: Vec<Shared<'_, u8>> =
            matrices.iter_mut().map(|m| Shared::new(m.bytes_mut())).collect();
        let sound = AtomicBool::new(true);
        workers.run(segments.len(), &|_, i| {
            let s = &segments[i];
            // SAFETY: segments do not overlap.
            let out = unsafe { shared[s.matrix].slice(s.first..s.first + s.len) };
            let read = sound.load(Ordering::Relaxed)
                && read_at(&file, out, start + s.offset).is_ok()
                && hash(out) == hashes[i];
            if !read {
                sound.store(false, Ordering::Relaxed);
            }
        });
        // For pruning by age of use; a folder that can't be written is no reason to fail.
        let _ = file.set_modified(std::time::SystemTime::now());
        sound.into_inner().then_some(matrices)
    }

    /// Keeps matrices, given in the order they were named.
    pub(crate) fn write(&self, matrices: &[&PackedWeight], workers: &Workers) -> io::Result<()> {
        let lengths: Vec<usize> = matrices.iter().map(|m| m.bytes().len()).collect();
        let segments = segments(&lengths);
        let mut hashes = vec![String::new(); segments.len()];
        let shared = Shared::new(&mut hashes);
        workers.run(segments.len(), &|_, i| {
            let s = &segments[i];
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
            matrices.iter().try_for_each(|m| out.write_all(m.bytes()))
        })
    }
}

/// A run of bytes of one matrix.
struct Segment {
    matrix: usize,
    first: usize,
    len: usize,
    /// Behind the head.
    offset: u64,
}

fn segments(lengths: &[usize]) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut before = 0;
    for (matrix, len) in lengths.iter().copied().enumerate() {
        for first in (0..len).step_by(SEGMENT) {
            let offset = before + first as u64;
            segments.push(Segment { matrix, first, len: SEGMENT.min(len - first), offset });
        }
        before += len as u64;
    }
    segments
}

fn hash(bytes: &[u8]) -> String {
    format!("{:032x}", XxHash3_128::oneshot(bytes))
}

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !out.is_empty() {
        let n = std::os::windows::fs::FileExt::seek_read(file, out, offset)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out = &mut out[n..];
        offset += n as u64;
    }
    Ok(())
}

#[cfg(not(any(unix, windows)))]
fn read_at(_file: &File, _out: &mut [u8], _offset: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
