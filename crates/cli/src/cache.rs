//! `lapidary cache`.
//!
//! It holds what can be made again: packed weights and compiled tokenizers. Only files with names of
//! its own form are looked at or removed.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{HumanBytes, HumanDuration};
use lapidary::cache::root;
use lapidary::program::cache_file;
use serde_json::{Value, json};

use crate::args::{CacheCommand, CacheLsArgs, CachePruneArgs};
use crate::screen;

/// The folders of the cache, and how the names of whole files in them end.
const FOLDERS: [(&str, &str); 2] = [("packs", "pack"), ("tokenizers", "tok")];
/// Hexadecimal digits of a whole file's name.
const KEY: usize = 32;
/// Files that have been partial for so long are nobody's any more.
const ABANDONED: Duration = Duration::from_secs(3600);
const DAY_S: u64 = 24 * 3600;

/// Lists or prunes.
pub fn run(command: &CacheCommand) -> Result<()> {
    match command {
        CacheCommand::Ls(args) => ls(args),
        CacheCommand::Prune(args) => prune(args),
    }
}

/// Bytes of all files of a cache.
pub fn size_bytes(root: &Path) -> u64 {
    entries(root).iter().map(|e| e.size_bytes).sum()
}

/// A file of the cache.
struct Entry {
    path: PathBuf,
    size_bytes: u64,
    /// Since it was last used.
    age: Duration,
    state: State,
}

enum State {
    Whole {
        kind: String,
        of: String,
    },
    Damaged,
    /// Being written, or left by a process that ended early.
    Partial,
}

impl Entry {
    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What it is, in a word, and of what.
    fn what(&self) -> (&str, &str) {
        match &self.state {
            State::Whole { kind, of } => (kind, of),
            State::Damaged => ("damaged", "–"),
            State::Partial => ("partial", "–"),
        }
    }

    fn as_json(&self) -> Value {
        let (state, kind, of) = match &self.state {
            State::Whole { kind, of } => ("whole", Some(kind), Some(of)),
            State::Damaged => ("damaged", None, None),
            State::Partial => ("partial", None, None),
        };
        json!({
            "path": shown(&self.path), "state": state, "kind": kind, "of": of,
            "key": matches!(self.state, State::Whole { .. }).then(|| key_of(&self.name()).to_string()),
            "size_bytes": self.size_bytes, "unused_s": self.age.as_secs(),
        })
    }

    fn is_to_go(&self, args: &CachePruneArgs) -> bool {
        let unused = self.age >= Duration::from_secs(args.older_than.saturating_mul(DAY_S));
        args.all
            || match self.state {
                State::Whole { .. } => unused,
                State::Damaged => true,
                State::Partial => self.age >= ABANDONED,
            }
    }
}

/// What is said of a cache that others can change.
pub fn no_trust(folder: &Path) -> String {
    format!(
        "the cache {} is not used: another user can write to it; own it and take that right away \
         (chmod -R o-w), or name another folder with LAPIDARY_CACHE",
        screen::name(&folder.to_string_lossy())
    )
}

/// A path as JSON can hold it.
pub fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// All files of a cache; none if it is not there.
fn entries(root: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    for (folder, ending) in FOLDERS {
        let Ok(files) = fs::read_dir(root.join(folder)) else { continue };
        found.extend(files.flatten().filter_map(|file| entry(&file, ending)));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// `None` for what is not the cache's own.
fn entry(file: &fs::DirEntry, ending: &str) -> Option<Entry> {
    let name = file.file_name().into_string().ok()?;
    let meta = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let path = file.path();
    let state = if is_whole_name(&name, ending) {
        let head = File::open(&path).and_then(|mut f| cache_file::read_head(&mut f));
        match head {
            Ok((head, _)) if head.key == key_of(&name) => {
                State::Whole { kind: head.kind, of: head.of }
            }
            _ => State::Damaged,
        }
    } else if is_partial_name(&name, ending) {
        State::Partial
    } else {
        return None;
    };
    let age = meta.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
    Some(Entry { path, size_bytes: meta.len(), age, state })
}

/// `<key>.<ending>`.
fn is_whole_name(name: &str, ending: &str) -> bool {
    name.split_once('.').is_some_and(|(key, rest)| {
        key.len() == KEY && key.bytes().all(|b| b.is_ascii_hexdigit()) && rest == ending
    })
}

/// `.<key>.<ending>.<anything>.partial`.
fn is_partial_name(name: &str, ending: &str) -> bool {
    let middle = name.strip_prefix('.').and_then(|name| name.strip_suffix(".partial"));
    let whole = middle.and_then(|name| name.get(..KEY + 1 + ending.len()));
    whole.is_some_and(|whole| is_whole_name(whole, ending))
}

fn key_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(key, _)| key)
}

fn ls(args: &CacheLsArgs) -> Result<()> {
    let root = root();
    let found = root.as_deref().map(entries).unwrap_or_default();
    let total: u64 = found.iter().map(|e| e.size_bytes).sum();
    let mut out = crate::screen::out();
    if args.json {
        let files: Vec<Value> = found.iter().map(Entry::as_json).collect();
        let report =
            json!({"root": root.as_deref().map(shown), "size_bytes": total, "files": files});
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    let Some(root) = root else {
        if let Some(folder) = lapidary::cache::distrusted() {
            writeln!(out, "{}", no_trust(&folder))?;
            return Ok(out.flush()?);
        }
        writeln!(out, "there is no cache: LAPIDARY_CACHE is off, or no home folder is known")?;
        return Ok(out.flush()?);
    };
    writeln!(out, "{}: {} in {} files", root.display(), HumanBytes(total), found.len())?;
    for entry in &found {
        let (kind, of) = entry.what();
        let size = HumanBytes(entry.size_bytes).to_string();
        let age = HumanDuration(entry.age);
        writeln!(out, "  {kind:<10} {size:>12}  used {age} ago  {of}  {}", entry.name())?;
    }
    Ok(out.flush()?)
}

fn prune(args: &CachePruneArgs) -> Result<()> {
    let found = root().as_deref().map(entries).unwrap_or_default();
    let mut out = crate::screen::out();
    let (mut freed, mut removed, mut failed) = (0u64, Vec::new(), None);
    for entry in found.iter().filter(|e| e.is_to_go(args)) {
        match fs::remove_file(&entry.path) {
            // Another process may have been quicker.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => failed = Some((e, &entry.path)),
            Ok(()) => {
                freed += entry.size_bytes;
                removed.push(entry.as_json());
                let (kind, of) = entry.what();
                if !args.json {
                    writeln!(
                        out,
                        "removed {kind} {} ({of}), {}",
                        screen::name(&entry.name()),
                        HumanBytes(entry.size_bytes)
                    )?;
                }
            }
        }
    }
    let left = found.len() - removed.len();
    if args.json {
        let report = json!({"freed_bytes": freed, "removed": removed, "files_left": left});
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        let n = removed.len();
        writeln!(out, "freed {} in {n} files, {left} left", HumanBytes(freed))?;
    }
    out.flush()?;
    match failed {
        Some((e, path)) => Err(e).with_context(|| format!("can't remove {}", path.display())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_partial_name, is_whole_name};

    #[test]
    fn only_names_of_its_own_form_are_the_caches() {
        let key = "0123456789abcdef0123456789abcdef";
        assert!(is_whole_name(&format!("{key}.tok"), "tok"));
        assert!(is_partial_name(&format!(".{key}.tok.17-0.partial"), "tok"));
        for other in [
            "notes.tok",
            ".partial",
            "x.partial",
            &format!("{key}.pack"),
            &format!("{key}.tok.bak"),
            &format!("{key}0.tok"),
            &format!(".{key}.tok"),
            &format!(".{key}.pack.17-0.partial"),
            "ééééééééééééééééé.tok",
            ".ééééééééééééééééééééé.tok.1-0.partial",
        ] {
            assert!(!is_whole_name(other, "tok") && !is_partial_name(other, "tok"), "{other}");
        }
    }
}
