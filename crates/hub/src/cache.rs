//! The folders of Hugging Face's cache, as `huggingface_hub` keeps them:
//!
//! ```text
//! hub/.locks/models--org--name/<etag>.lock
//! hub/models--org--name/blobs/<etag>                      the bytes
//! hub/models--org--name/refs/main                         the commit of a branch
//! hub/models--org--name/snapshots/<commit>/config.json -> ../../blobs/<etag>
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::api::is_hex;
use crate::error::{Error, Result};

/// How a model's folder begins.
const PREFIX: &str = "models--";
/// Tells backup programs that all this can be had again.
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
# This folder holds files that can be downloaded again.\n";

/// The cache.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// The folder of one repository.
#[derive(Clone, Debug)]
pub struct RepoFolder {
    pub path: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub fn at(root: &Path) -> Self {
        Cache { root: root.to_path_buf() }
    }

    /// The folder of a repository, which need not be there.
    pub fn repo(&self, repo: &str) -> RepoFolder {
        let name = format!("{PREFIX}{}", repo.replace('/', "--"));
        RepoFolder { locks: self.root.join(".locks").join(&name), path: self.root.join(name) }
    }

    /// All repositories of models.
    pub fn repos(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(Error::io(&self.root))?,
        };
        let mut repos: Vec<String> = entries
            .flatten()
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let repo = name.strip_prefix(PREFIX)?.replacen("--", "/", 1);
                crate::name::check_repo(&repo).is_ok().then_some(repo)
            })
            .collect();
        repos.sort();
        Ok(repos)
    }

    /// Makes the folder, with the mark that it holds nothing of its own.
    pub fn make(&self) -> Result<()> {
        fs::create_dir_all(&self.root).map_err(Error::io(&self.root))?;
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            // It is a courtesy only.
            let _ = fs::write(tag, TAG);
        }
        Ok(())
    }
}

impl RepoFolder {
    /// Where the bytes of a file are.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.path.join("blobs").join(etag)
    }

    /// What two processes lock that want the same file.
    pub fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// The locks of all its files.
    pub fn locks(&self) -> &Path {
        &self.locks
    }

    /// The folder of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.path.join("snapshots").join(commit)
    }

    /// The commit that a revision stood for when it was last asked.
    pub fn commit(&self, revision: &str) -> Option<String> {
        if is_hex(revision, 40) {
            return Some(revision.to_string());
        }
        let text = fs::read_to_string(self.path.join("refs").join(revision)).ok()?;
        let commit = text.trim();
        is_hex(commit, 40).then(|| commit.to_string())
    }

    /// All commits that have a folder.
    pub fn commits(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path.join("snapshots")) else { return vec![] };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| is_hex(name, 40)).collect()
    }

    /// The files of a commit that are there with their bytes.
    pub fn files(&self, commit: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.snapshot(commit)) else { return vec![] };
        let there = entries.flatten().filter(|entry| entry.path().is_file());
        let mut names: Vec<String> =
            there.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Shows a blob as a file of a commit. What has the name already is replaced in one step.
    pub fn link(&self, commit: &str, file: &str, etag: &str) -> Result<()> {
        let folder = self.snapshot(commit);
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        let (pointer, blob) = (folder.join(file), self.blob(etag));
        let target: PathBuf = ["..", "..", "blobs", etag].iter().collect();
        if fs::read_link(&pointer).is_ok_and(|there| there == target) {
            return Ok(());
        }
        let partial = folder.join(format!(".{file}.{}.tmp", std::process::id()));
        let _ = fs::remove_file(&partial);
        // Not every disk has symbolic links, and not every user of Windows may make them.
        symlink(&target, &partial)
            .or_else(|_| fs::hard_link(&blob, &partial))
            .or_else(|_| fs::copy(&blob, &partial).map(|_| ()))
            .and_then(|()| fs::rename(&partial, &pointer))
            .map_err(Error::io(&pointer))
    }

    /// Keeps which commit a branch or a tag stands for.
    pub fn write_ref(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.path.join("refs").join(revision);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Error::io(folder))?;
        }
        let partial = path.with_extension(format!("{}.tmp", std::process::id()));
        fs::write(&partial, commit).map_err(Error::io(&partial))?;
        fs::rename(&partial, &path).map_err(Error::io(&path))
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_a_commit_is_a_relative_link_to_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        cache.make().unwrap();
        let repo = cache.repo("google/gemma-3-1b-it");
        let (commit, etag) = ("c".repeat(40), "e".repeat(64));
        fs::create_dir_all(repo.blob("x").parent().unwrap()).unwrap();
        fs::write(repo.blob(&etag), "bytes").unwrap();
        repo.link(&commit, "config.json", &etag).unwrap();
        repo.link(&commit, "config.json", &etag).unwrap();
        repo.write_ref("main", &commit).unwrap();
        repo.write_ref("refs/pr/1", &commit).unwrap();
        let name = folder.path().join("models--google--gemma-3-1b-it");
        let pointer = name.join("snapshots").join(&commit).join("config.json");
        assert_eq!(fs::read_to_string(&pointer).unwrap(), "bytes");
        #[cfg(unix)]
        assert_eq!(fs::read_link(&pointer).unwrap(), Path::new("../../blobs").join(&etag));
        assert_eq!(fs::read_to_string(name.join("refs/main")).unwrap(), commit);
        assert_eq!(repo.commit("refs/pr/1"), Some(commit.clone()));
        assert_eq!(repo.files(&commit), ["config.json"]);
        assert_eq!(cache.repos().unwrap(), ["google/gemma-3-1b-it"]);
        // A link without its bytes is no file.
        fs::remove_file(repo.blob(&etag)).unwrap();
        assert!(repo.files(&commit).is_empty() || cfg!(not(unix)));
    }

    #[test]
    fn what_is_no_commit_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let repo = Cache::at(folder.path()).repo("a/b");
        fs::create_dir_all(repo.path.join("refs")).unwrap();
        fs::write(repo.path.join("refs/main"), "../../../etc").unwrap();
        assert_eq!(repo.commit("main"), None);
        assert_eq!(Cache::at(&folder.path().join("none")).repos().unwrap(), Vec::<String>::new());
    }
}
