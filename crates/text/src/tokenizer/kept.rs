//! Compiled tokenizers, so that a second start does not work them out again.
//!
//! Where files are kept is for others to know. A file is kept under a hash of what the tokenizer was made from. It carries a hash of its
//! contents: one that is damaged, cut short or of something else is found out before it is used, and
//! the tokenizer is made anew.

use std::io;
use std::path::Path;
use std::sync::Arc;

use lapidary_program::cache_file::{self, CacheFolder, CacheHead, KeptFiles};
use lapidary_program::{Blob, Program, blob};
use serde::{Deserialize, Serialize};

use super::table::Piece;
use super::{Parts, Tokenizer, compiled, json};
use crate::error::Result;

/// The folder of tokenizers under a cache's root.
const FOLDER: &str = "tokenizers";
/// What a file's head says that it is.
const KIND: &str = "tokenizer";
/// Hexadecimal digits of a key.
const KEY: usize = 32;
/// The longest file that is read; that of the largest published vocabulary has some 12 MB.
const MAX_BYTES: u64 = 256 << 20;

/// What a cache had to do with a tokenizer.
#[derive(Debug)]
pub enum CacheUse {
    /// Nothing: there is no cache.
    Off,
    /// The tokenizer was read from it.
    Read,
    /// The tokenizer was made, and is kept from now on.
    Written,
    /// The tokenizer was made, and could not be kept.
    NotWritten(io::Error),
}

/// Reads the program's tokenizer, if it has one.
pub fn load_tokenizer(program: &Program) -> Result<Option<Tokenizer>> {
    Ok(load_tokenizer_cached(program, None)?.map(|(tokenizer, _)| tokenizer))
}

/// The same by way of a cache's root folder: what is kept there is read, what is not will be.
/// A cache that does not work changes nothing but the time that this takes.
pub fn load_tokenizer_cached(
    program: &Program,
    root: Option<&Path>,
) -> Result<Option<(Tokenizer, CacheUse)>> {
    let folder = root.map(|root| CacheFolder(root.to_path_buf()));
    load_tokenizer_kept(program, folder.as_ref().map(|folder| folder as &dyn KeptFiles))
}

/// The same by way of files that are kept anywhere.
pub fn load_tokenizer_kept(
    program: &Program,
    files: Option<&dyn KeptFiles>,
) -> Result<Option<(Tokenizer, CacheUse)>> {
    let Some(blob) = program.blobs().get(blob::TOKENIZER) else { return Ok(None) };
    let metadata = program.metadata();
    let cache = files.map(|files| (files, metadata.name.as_str()));
    Tokenizer::from_blob(blob, metadata.vocab_size, cache).map(Some)
}

impl Tokenizer {
    /// The same as [`Tokenizer::from_json`] of a blob's bytes, by way of a cache if one is given:
    /// its files, and the name of the model that the tokenizer is of.
    pub fn from_blob(
        blob: &Blob,
        vocab_size: u32,
        cache: Option<(&dyn KeptFiles, &str)>,
    ) -> Result<(Tokenizer, CacheUse)> {
        let Some((files, of)) = cache else {
            return Ok((Tokenizer::of_parts(make(blob, vocab_size)?, vocab_size)?, CacheUse::Off));
        };
        let key = key(blob, vocab_size);
        let name = format!("{FOLDER}/{key}.tok");
        if let Some(parts) = read(files, &name, &key)
            && let Ok(tokenizer) = Tokenizer::of_parts(parts, vocab_size)
        {
            files.mark_used(&name);
            return Ok((tokenizer, CacheUse::Read));
        }
        let parts = make(blob, vocab_size)?;
        let written = write(files, &name, (&key, of), &parts);
        let tokenizer = Tokenizer::of_parts(parts, vocab_size)?;
        Ok((tokenizer, written.map_or_else(CacheUse::NotWritten, |()| CacheUse::Written)))
    }
}

/// What a head says of what follows it.
#[derive(Serialize, Deserialize)]
struct Contents {
    size_bytes: u64,
    blake3: String,
}

fn make(blob: &Blob, vocab_size: u32) -> Result<Parts> {
    json::read(blob.bytes()?, vocab_size)
}

fn key(blob: &Blob, vocab_size: u32) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(concat!("lapidary ", env!("CARGO_PKG_VERSION"), " tokenizer ").as_bytes());
    hasher.update(&compiled::FORMAT.to_le_bytes());
    hasher.update(&vocab_size.to_le_bytes());
    hasher.update(&blob.identity());
    hasher.finalize().to_hex()[..KEY].to_string()
}

/// What is kept under a key; `None` if nothing is, or nothing that can be trusted.
fn read(files: &dyn KeptFiles, name: &str, key: &str) -> Option<Parts> {
    let file = Arc::new(files.open(name, MAX_BYTES)?);
    let len = u64::try_from(file.len()).ok()?;
    let (head, start) = cache_file::read_head(&mut &file[..]).ok()?;
    let contents: Contents = serde_json::from_value(head.contents).ok()?;
    if head.kind != KIND || head.key != key || Some(contents.size_bytes) != len.checked_sub(start) {
        return None;
    }
    let kept = Piece::from(file.clone(), usize::try_from(start).ok()?)?;
    if blake3::hash(kept.bytes()).to_hex().as_str() != contents.blake3 {
        return None;
    }
    let parts = compiled::read(kept)?;
    // All of it was looked at; what is needed again is little.
    file.forget(0..file.len());
    Some(parts)
}

fn write(
    files: &dyn KeptFiles,
    name: &str,
    (key, of): (&str, &str),
    parts: &Parts,
) -> io::Result<()> {
    let bytes = compiled::write(parts)
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "it has no flat form"))?;
    let size_bytes = bytes.len() as u64;
    let contents = Contents { size_bytes, blake3: blake3::hash(&bytes).to_hex().to_string() };
    let head = CacheHead {
        kind: KIND.to_string(),
        of: of.to_string(),
        key: key.to_string(),
        contents: serde_json::to_value(contents)?,
    };
    files.keep(name, &[&cache_file::head_bytes(&head), &bytes])
}
