//! One file: its ranges side by side, what has come already, and its checksum.
//!
//! Bytes are gathered in `<etag>.lapidary.incomplete`, beside which `<etag>.lapidary.ranges` says what
//! of it has come. Only a file whose checksum is right gets its final name, in one step, so that
//! whoever looks there finds all of it or nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::address::Address;
use crate::cache::RepoFolder;
use crate::error::{Error, Result};
use crate::http::{About, Client, Wanted};

/// The most that is written or hashed at once.
const BUFFER: usize = 256 << 10;
/// The shortest range that is asked for by itself, unless told.
const MIN_RANGE: u64 = 8 << 20;
/// So many ranges at most, so that the longest files don't take a request for every few moments.
const MAX_RANGES: u64 = 1024;

/// How files are downloaded.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Requests at a time.
    pub connections: usize,
    /// The shortest range.
    pub min_range: u64,
}

impl Default for Transfer {
    fn default() -> Self {
        Transfer { connections: 8, min_range: MIN_RANGE }
    }
}

/// What is told while files come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The file.
    pub file: String,
    /// What is done with it.
    pub step: Step,
    /// Bytes of all files that have come.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another process downloads it.
    Waiting,
    /// It comes.
    Downloading,
    /// Its checksum is computed.
    Checking,
}

/// A file to download.
pub struct Job<'a> {
    pub folder: &'a RepoFolder,
    pub address: Address,
    pub about: About<'a>,
    pub file: &'a str,
    pub etag: &'a str,
    pub size: u64,
}

/// Told of a step, and of bytes of this file.
pub type Tell<'a> = &'a (dyn Fn(Step, u64) + Sync);

/// Sees to it that a file's bytes are in the cache.
pub fn fetch(
    client: &Client,
    job: &Job,
    transfer: Transfer,
    stop: &AtomicBool,
    tell: Tell,
) -> Result<()> {
    if is_there(job) {
        // Left by a process that ended between its last two steps.
        let _ = fs::remove_file(Paths::of(job.folder, job.etag).ranges);
        return Ok(());
    }
    let _lock = lock(job, stop, tell)?;
    // Another process may have brought it meanwhile.
    if is_there(job) {
        return Ok(());
    }
    let blob = job.folder.blob(job.etag);
    if let Some(folder) = blob.parent() {
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
    }
    let mut partial = Partial::open(job, transfer.min_range)?;
    let had = partial.has_any();
    match complete(client, job, &mut partial, transfer, stop, tell) {
        // What an earlier run left may be damaged; what came just now is not asked for twice.
        Err(Error::Checksum { .. }) if had => {
            partial.remove();
            partial = Partial::open(job, transfer.min_range)?;
            complete(client, job, &mut partial, transfer, stop, tell)?;
        }
        done => done?,
    }
    partial.finish(&blob)
}

/// The bytes of a file that a broken download has left, so that they need not come again.
pub fn left_over(folder: &RepoFolder, etag: &str, size: u64) -> u64 {
    let paths = Paths::of(folder, etag);
    read_ranges(&paths.ranges, size).map_or(0, |(_, range, done)| {
        let of = |i: usize| bounds(i, range, size);
        done.iter().enumerate().filter(|(_, d)| **d).map(|(i, _)| of(i).1 - of(i).0).sum()
    })
}

/// A file of the right length has the right bytes: it got its name only then.
fn is_there(job: &Job) -> bool {
    fs::metadata(job.folder.blob(job.etag)).is_ok_and(|m| m.is_file() && m.len() == job.size)
}

/// Waits for other processes that download the same file.
fn lock(job: &Job, stop: &AtomicBool, tell: Tell) -> Result<File> {
    let path = job.folder.lock(job.etag);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(Error::io(folder))?;
    }
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(Error::io(&path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // A disk without locks: two downloads then cost time, and the checksum finds the rest.
            Err(fs::TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
                return Ok(file);
            }
            Err(fs::TryLockError::Error(e)) => return Err(Error::io(&path)(e)),
            Err(fs::TryLockError::WouldBlock) => {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Cancelled);
                }
                tell(Step::Waiting, 0);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn complete(
    client: &Client,
    job: &Job,
    partial: &mut Partial,
    transfer: Transfer,
    stop: &AtomicBool,
    tell: Tell,
) -> Result<()> {
    match ranges(client, job, partial, transfer, stop, tell) {
        Err(Broken::NoRanges) => in_one(client, job, partial, stop, tell)?,
        Err(Broken::Error(e)) => return Err(e),
        Ok(()) => {}
    }
    tell(Step::Checking, job.size);
    let found = checksum(&partial.paths.bytes, job.etag, job.size, stop)?;
    if found == job.etag {
        return Ok(());
    }
    partial.remove();
    Err(Error::Checksum { file: job.file.into(), wanted: job.etag.into(), found })
}

/// Why ranges don't come.
enum Broken {
    /// The server sends whole files only.
    NoRanges,
    Error(Error),
}

impl From<Error> for Broken {
    fn from(e: Error) -> Self {
        Broken::Error(e)
    }
}

/// Brings all ranges that are missing, several at a time.
fn ranges(
    client: &Client,
    job: &Job,
    partial: &Partial,
    transfer: Transfer,
    stop: &AtomicBool,
    tell: Tell,
) -> Result<(), Broken> {
    let missing = partial.missing();
    let come = AtomicU64::new(partial.come());
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<Broken>> = Mutex::new(None);
    let is_over = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed) || is_over.load(Ordering::Relaxed);
    let work = || -> Result<(), Broken> {
        let path = &partial.paths.bytes;
        let file = OpenOptions::new().write(true).open(path).map_err(Error::io(path))?;
        while let Some(index) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (start, end) = bounds(*index, partial.range, job.size);
            range(client, job, &file, start, end, &stopped, stop, &|n| {
                tell(Step::Downloading, come.fetch_add(n, Ordering::Relaxed) + n);
            })?;
            partial.mark(*index)?;
        }
        Ok(())
    };
    tell(Step::Downloading, come.load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        let connection = || {
            if let Err(e) = work() {
                is_over.store(true, Ordering::Relaxed);
                if let Ok(mut failed) = failed.lock() {
                    // The first one is why the others were told to end.
                    failed.get_or_insert(e);
                }
            }
        };
        for _ in 1..transfer.connections.clamp(1, missing.len().max(1)) {
            // With fewer threads it takes longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, connection);
        }
        connection();
    });
    match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

/// Brings one range. What comes of it before the connection breaks is not asked for again.
#[allow(clippy::too_many_arguments)]
fn range(
    client: &Client,
    job: &Job,
    mut file: &File,
    start: u64,
    end: u64,
    stopped: &dyn Fn() -> bool,
    stop: &AtomicBool,
    come: &dyn Fn(u64),
) -> Result<(), Broken> {
    let path = || job.folder.blob(job.etag);
    let mut at = start;
    let mut failures = 0;
    file.seek(SeekFrom::Start(start)).map_err(|e| Error::io(&path())(e))?;
    while at < end {
        if stopped() {
            return Err(Error::Cancelled.into());
        }
        let before = at;
        let broken = match client.ask(&job.address, Wanted::Range(at, end), job.about) {
            Ok(answer) => {
                if !answer.is_partial() && (at, end) != (0, job.size) {
                    return Err(Broken::NoRanges);
                }
                let is_other = |given: &str| !given.starts_with(&format!("bytes {at}-"));
                if answer.is_partial() && answer.header("content-range").is_none_or(is_other) {
                    let what = "it sends another range than was asked for".into();
                    return Err(Error::Answer { url: answer.from.public(), what }.into());
                }
                let from = answer.from.public();
                let copied = copy(&mut answer.into_reader(), end - at, stopped, &mut |bytes| {
                    file.write_all(bytes).map_err(|e| Error::io(&path())(e))?;
                    let n = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    at += n;
                    come(n);
                    Ok(())
                });
                match copied? {
                    None => continue,
                    Some(what) => Error::Network { url: from, what },
                }
            }
            Err(e) if e.may_pass() => e,
            Err(e) => return Err(e.into()),
        };
        // Only who brings nothing at all several times is given up.
        failures = if at > before { 0 } else { failures + 1 };
        if failures > client.patience().retries {
            return Err(broken.into());
        }
        client.wait(failures, &broken, stop)?;
    }
    Ok(())
}

/// Copies what comes, no more than is wanted. Says why it ended too early, if it did.
fn copy(
    from: &mut impl Read,
    mut wanted: u64,
    stopped: &dyn Fn() -> bool,
    to: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Option<String>> {
    let mut buffer = vec![0; BUFFER];
    while wanted > 0 {
        if stopped() {
            return Err(Error::Cancelled);
        }
        let most = usize::try_from(wanted).unwrap_or(BUFFER).min(BUFFER);
        let Some(room) = buffer.get_mut(..most) else { break };
        match from.read(room) {
            Ok(0) => return Ok(Some("the connection ended too early".into())),
            Ok(n) => {
                to(room.get(..n).unwrap_or_default())?;
                wanted -= u64::try_from(n).unwrap_or(wanted).min(wanted);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Ok(Some(e.to_string())),
        }
    }
    Ok(None)
}

/// Brings a file from a server that sends no ranges, from its beginning each time.
fn in_one(
    client: &Client,
    job: &Job,
    partial: &Partial,
    stop: &AtomicBool,
    tell: Tell,
) -> Result<()> {
    let path = &partial.paths.bytes;
    let stopped = || stop.load(Ordering::Relaxed);
    client.patiently(stop, || {
        let mut file = OpenOptions::new().write(true).open(path).map_err(Error::io(path))?;
        let answer = client.ask(&job.address, Wanted::Whole, job.about)?;
        let url = answer.from.public();
        let mut come = 0;
        tell(Step::Downloading, 0);
        let ended = copy(&mut answer.into_reader(), job.size, &stopped, &mut |bytes| {
            file.write_all(bytes).map_err(Error::io(path))?;
            come += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            tell(Step::Downloading, come);
            Ok(())
        })?;
        match ended {
            None => Ok(()),
            Some(what) => Err(Error::Network { url, what }),
        }
    })
}

/// The checksum of a kind that the wanted one is of: SHA-256, or SHA-1 as git computes it.
pub fn checksum(path: &Path, wanted: &str, size: u64, stop: &AtomicBool) -> Result<String> {
    let mut context = match wanted.len() {
        64 => Context::new(&SHA256),
        _ => Context::new(&SHA1_FOR_LEGACY_USE_ONLY),
    };
    if wanted.len() != 64 {
        context.update(format!("blob {size}\0").as_bytes());
    }
    let mut file = File::open(path).map_err(Error::io(path))?;
    let mut buffer = vec![0; BUFFER];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let n = file.read(&mut buffer).map_err(Error::io(path))?;
        if n == 0 {
            break;
        }
        context.update(buffer.get(..n).unwrap_or_default());
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The files of a download that is not complete.
struct Paths {
    bytes: PathBuf,
    ranges: PathBuf,
}

impl Paths {
    fn of(folder: &RepoFolder, etag: &str) -> Self {
        let name = |end: &str| folder.blob(&format!("{etag}.lapidary.{end}"));
        Paths { bytes: name("incomplete"), ranges: name("ranges") }
    }
}

/// A download that is not complete.
struct Partial {
    paths: Paths,
    /// Bytes of a range.
    range: u64,
    size: u64,
    /// Whether each range has come, as it was when this was opened.
    done: Vec<bool>,
    /// The file that says so, and where in it the first range stands.
    state: Mutex<File>,
    head: u64,
}

impl Partial {
    /// What an earlier run left, or a new one.
    fn open(job: &Job, min_range: u64) -> Result<Self> {
        let (paths, size) = (Paths::of(job.folder, job.etag), job.size);
        let there = fs::metadata(&paths.bytes).is_ok_and(|m| m.is_file() && m.len() == size);
        let left = read_ranges(&paths.ranges, size).filter(|_| there);
        let (head, range, done) = match left {
            Some(left) => left,
            None => {
                let range = min_range.max(size.div_ceil(MAX_RANGES)).max(1);
                let n = usize::try_from(size.div_ceil(range)).unwrap_or(usize::MAX);
                // First what says that nothing has come: a crash between both leaves no lie.
                let head = format!("lapidary 1 {size} {range}\n");
                let text = format!("{head}{}", "0".repeat(n));
                let io = |path: &Path| Error::io(path);
                let _ = fs::remove_file(&paths.bytes);
                fs::write(&paths.ranges, text).map_err(io(&paths.ranges))?;
                let bytes = File::create(&paths.bytes).map_err(io(&paths.bytes))?;
                bytes.set_len(size).map_err(io(&paths.bytes))?;
                (u64::try_from(head.len()).unwrap_or(0), range, vec![false; n])
            }
        };
        let state = OpenOptions::new().write(true).open(&paths.ranges);
        let state = Mutex::new(state.map_err(Error::io(&paths.ranges))?);
        Ok(Partial { paths, range, size, done, state, head })
    }

    fn has_any(&self) -> bool {
        self.done.contains(&true)
    }

    fn missing(&self) -> Vec<usize> {
        self.done.iter().enumerate().filter(|(_, done)| !**done).map(|(i, _)| i).collect()
    }

    /// Bytes that are there.
    fn come(&self) -> u64 {
        let of = |i: usize| bounds(i, self.range, self.size);
        self.done.iter().enumerate().filter(|(_, d)| **d).map(|(i, _)| of(i).1 - of(i).0).sum()
    }

    /// A range has come.
    fn mark(&self, index: usize) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let at = self.head + u64::try_from(index).unwrap_or(0);
        let marked = state.seek(SeekFrom::Start(at)).and_then(|_| state.write_all(b"1"));
        marked.map_err(Error::io(&self.paths.ranges))
    }

    /// Gives the file its name.
    fn finish(self, blob: &Path) -> Result<()> {
        let bytes = &self.paths.bytes;
        let synced = File::open(bytes).and_then(|file| file.sync_all());
        synced.and_then(|()| fs::rename(bytes, blob)).map_err(Error::io(blob))?;
        let _ = fs::remove_file(&self.paths.ranges);
        Ok(())
    }

    fn remove(&self) {
        let _ = fs::remove_file(&self.paths.bytes);
        let _ = fs::remove_file(&self.paths.ranges);
    }
}

/// Where a range begins, and where the next one does.
fn bounds(index: usize, range: u64, size: u64) -> (u64, u64) {
    let start = u64::try_from(index).unwrap_or(u64::MAX).saturating_mul(range).min(size);
    (start, start.saturating_add(range).min(size))
}

/// The length of the first line, the bytes of a range, and which ranges have come.
fn read_ranges(path: &Path, size: u64) -> Option<(u64, u64, Vec<bool>)> {
    let mut text = String::new();
    // A line and a sign for each range are all that is ever written there.
    File::open(path).ok()?.take(MAX_RANGES + 100).read_to_string(&mut text).ok()?;
    let (head, signs) = text.split_once('\n')?;
    let mut words = head.strip_prefix("lapidary 1 ")?.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (there, range) = (number()?, number()?);
    let n = usize::try_from(size.div_ceil(range.max(1))).ok()?;
    let is_right = there == size && range > 0 && signs.len() == n;
    let done = signs.bytes().map(|sign| sign == b'1').collect();
    is_right.then_some((u64::try_from(head.len()).ok()? + 1, range, done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_git_and_of_sha256() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "hello\n").unwrap();
        let of = |wanted: &str| checksum(file.path(), wanted, 6, &AtomicBool::new(false)).unwrap();
        // `git hash-object` and `sha256sum` say so.
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert_eq!((of(git).as_str(), of(sha256).as_str()), (git, sha256));
    }

    #[test]
    fn ranges_cover_a_file_without_gaps() {
        for (size, range) in [(0, 4), (1, 4), (4, 4), (5, 4), (1 << 40, 1 << 30)] {
            let n = usize::try_from(u64::div_ceil(size, range)).unwrap();
            let mut at = 0;
            for i in 0..n {
                let (start, end) = bounds(i, range, size);
                assert!(start == at && end > start);
                at = end;
            }
            assert_eq!(at, size);
        }
    }
}
