//! Files that someone asked for by name.
//!
//! Such a file has its name only when it is whole. Until then its bytes stand beside it, in a file
//! that is locked: one that isn't is what a killed run left, and the next run in that folder takes
//! it away. What stands under the name is never a device, a pipe or a link that this replaces.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How names of unfinished files begin and end.
const PREFIX: &str = ".lapidary-";
const SUFFIX: &str = ".tmp";

/// What to do with a file that stands under the name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Leave it and fail.
    Keep,
    /// Put the new one in its place.
    Replace,
}

/// A file that is being written.
#[derive(Debug)]
pub struct OutFile {
    /// Where it will stand.
    path: PathBuf,
    /// Where it stands.
    unfinished: PathBuf,
    file: File,
    existing: Existing,
}

/// Whether a file can be written under a name: what [`OutFile::create`] would say, with nothing
/// left behind. For those who have long work to do before they write.
pub fn check(path: &Path, existing: Existing) -> io::Result<()> {
    OutFile::create(path, existing).map(drop)
}

impl OutFile {
    /// Begins a file. Fails if it could not have its name at the end.
    pub fn create(path: &Path, existing: Existing) -> io::Result<Self> {
        look(path, existing)?;
        let folder = folder(path);
        clean(folder);
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let n = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{}-{n}{SUFFIX}", std::process::id());
            let unfinished = folder.join(name);
            let file =
                match File::options().read(true).write(true).create_new(true).open(&unfinished) {
                    Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                    other => other?,
                };
            // Somebody who cleans may have seen it before it was locked.
            let locked = file.try_lock();
            if matches!(locked, Err(fs::TryLockError::WouldBlock)) || !unfinished.exists() {
                continue;
            }
            return Ok(OutFile { path: path.to_path_buf(), unfinished, file, existing });
        }
    }

    /// Where it stands until it is whole.
    pub fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Makes the file last and gives it its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        look(&self.path, self.existing)?;
        match self.existing {
            Existing::Replace => self.rename(),
            Existing::Keep => match fs::hard_link(&self.unfinished, &self.path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(is_there(&self.path)),
                // Where a file can't have two names, the name is taken first and then the file is
                // put there: nobody else's file is lost.
                Err(_) => {
                    match File::create_new(&self.path) {
                        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                            return Err(is_there(&self.path));
                        }
                        other => drop(other?),
                    }
                    self.rename()
                }
                // The other name goes when this is dropped.
                Ok(()) => Ok(()),
            },
        }
    }

    fn rename(&mut self) -> io::Result<()> {
        fs::rename(&self.unfinished, &self.path)?;
        // The old name may be somebody else's from here on.
        self.unfinished = PathBuf::new();
        Ok(())
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if self.unfinished.as_os_str().is_empty() {
            return;
        }
        // If it can't go now, the next run takes it.
        let _ = fs::remove_file(&self.unfinished);
    }
}

/// Removes what killed runs left in a folder.
pub fn clean(folder: &Path) {
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name();
        let Some(name) = name.to_str() else { continue };
        if !name.starts_with(PREFIX) || !name.ends_with(SUFFIX) {
            continue;
        }
        let is_file = file.file_type().is_ok_and(|t| t.is_file());
        // Whoever writes it holds its lock. Removed while it is locked here, so that its writer,
        // if there is one after all, sees that it is gone.
        if is_file
            && let Ok(left) = File::options().write(true).open(file.path())
            && left.try_lock().is_ok()
        {
            let _ = fs::remove_file(file.path());
        }
    }
}

fn look(path: &Path, existing: Existing) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let kind = found.file_type();
    if kind.is_dir() {
        return Err(refused(path, "is a folder; name a file"));
    }
    if kind.is_symlink() {
        return Err(refused(path, "is a link; name the file itself"));
    }
    if !kind.is_file() {
        return Err(refused(path, "is a device or a pipe; name a file"));
    }
    match existing {
        Existing::Keep => Err(is_there(path)),
        Existing::Replace => Ok(()),
    }
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} {why}", path.display()))
}

fn is_there(path: &Path) -> io::Error {
    let what = format!("{} is there already; --force replaces it", path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, what)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let files = fs::read_dir(folder).unwrap();
        files.map(|f| f.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn f22_a_file_has_its_name_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut out = OutFile::create(&path, Existing::Keep).unwrap();
        out.write_all(b"one").unwrap();
        assert!(!path.exists());
        out.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(names(folder.path()), ["out"]);
        // It is not replaced, unless that was asked for.
        let e = OutFile::create(&path, Existing::Keep).unwrap_err();
        assert!(e.to_string().contains("--force"), "{e}");
        let mut out = OutFile::create(&path, Existing::Replace).unwrap();
        out.write_all(b"two").unwrap();
        drop(out);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let mut out = OutFile::create(&path, Existing::Replace).unwrap();
        out.write_all(b"two").unwrap();
        out.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn f22_a_file_that_came_meanwhile_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut out = OutFile::create(&path, Existing::Keep).unwrap();
        out.write_all(b"mine").unwrap();
        fs::write(&path, "yours").unwrap();
        let e = out.finish().unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"yours");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[cfg(unix)]
    #[test]
    fn f22_devices_pipes_links_and_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        fs::write(&target, "kept").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let nowhere = folder.path().join("nowhere");
        std::os::unix::fs::symlink("gone", &nowhere).unwrap();
        let socket = folder.path().join("socket");
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&link, &nowhere, &socket, Path::new("/dev/null"), folder.path()] {
            for existing in [Existing::Keep, Existing::Replace] {
                let e = OutFile::create(path, existing).unwrap_err();
                assert_eq!(e.kind(), io::ErrorKind::InvalidInput, "{}: {e}", path.display());
            }
        }
        assert_eq!(fs::read(&target).unwrap(), b"kept");
        // One that comes meanwhile is no other.
        let path = folder.path().join("out");
        let out = OutFile::create(&path, Existing::Replace).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        assert_eq!(out.finish().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    }

    #[test]
    fn f16_what_a_killed_run_left_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(".lapidary-123-0.tmp");
        fs::write(&left, "half").unwrap();
        fs::write(folder.path().join(".other.tmp"), "kept").unwrap();
        let first = OutFile::create(&folder.path().join("a"), Existing::Keep).unwrap();
        assert!(!left.exists());
        // What is being written stays.
        let second = OutFile::create(&folder.path().join("b"), Existing::Keep).unwrap();
        assert!(first.unfinished().exists());
        second.finish().unwrap();
        first.finish().unwrap();
        let mut names = names(folder.path());
        names.sort();
        assert_eq!(names, [".other.tmp", "a", "b"]);
    }
}
