//! Names to files: what is there, what would come, and bringing it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::api::{self, complete, file_address};
use crate::cache::Cache;
use crate::download::{self, Job, Progress, Step, Transfer};
use crate::error::{Error, Result};
use crate::http::{About, Client, Patience};
use crate::name::Name;
use crate::select::{INDEX, Selection, select};
use crate::settings::Settings;

/// The cache of this machine, and the hub behind it.
///
/// ```no_run
/// use lapidary_hub::{Hub, Name};
///
/// let hub = Hub::from_env()?;
/// let name = Name::parse("gemma4:e2b")?;
/// let found = match hub.find(&name) {
///     Ok(found) => found,
///     Err(_) => hub.pull(&hub.ask(&name)?, &Default::default())?,
/// };
/// println!("{}", found.model.display());
/// # Ok::<(), lapidary_hub::Error>(())
/// ```
#[derive(Debug)]
pub struct Hub {
    settings: Settings,
    cache: Cache,
    patience: Patience,
    transfer: Transfer,
}

/// A model's files on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The folder, or the GGUF file, to open.
    pub model: PathBuf,
    /// The GGUF file with the towers.
    pub towers: Option<PathBuf>,
    /// The recipe to quantise it by.
    pub recipe: Option<String>,
    /// The commit it is of.
    pub commit: String,
    /// All its files.
    pub files: Vec<PathBuf>,
}

/// What a download would bring.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The model.
    pub name: Name,
    /// The commit it is of.
    pub commit: String,
    /// Bytes of all files.
    pub total: u64,
    /// Bytes that are not there yet.
    pub missing: u64,
    selection: Selection,
    files: Vec<Wanted>,
}

#[derive(Clone, Debug)]
struct Wanted {
    name: String,
    size: u64,
    etag: String,
}

/// Who watches a download, and may end it.
#[derive(Default)]
pub struct Watch<'a> {
    /// Told of progress, from several threads.
    pub tell: Option<&'a (dyn Fn(&Progress) + Sync)>,
    /// Ends it when it is set.
    pub stop: Option<&'a AtomicBool>,
}

/// A repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// `org/repo`.
    pub repo: String,
    /// The commits that hold a model, the newest branch's first.
    pub commit: String,
    /// The file to open, or none for the folder.
    pub model: Option<String>,
    /// The folder of the commit.
    pub path: PathBuf,
    /// Bytes of the whole repository on this disk.
    pub bytes: u64,
}

/// Nobody stops it.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Hub {
    /// The cache and the hub that the environment names.
    pub fn from_env() -> Result<Self> {
        Settings::from_env().map(Self::new)
    }

    /// With these settings.
    pub fn new(settings: Settings) -> Self {
        let cache = Cache::at(&settings.cache);
        Hub { settings, cache, patience: Patience::default(), transfer: Transfer::default() }
    }

    /// Repeats requests as told.
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    /// Downloads as told.
    pub fn transfer(mut self, transfer: Transfer) -> Self {
        self.transfer = transfer;
        self
    }

    /// Where the cache and the hub are.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A model's files, if all of them are on this machine. Nothing is asked of the network.
    pub fn find(&self, name: &Name) -> Result<Found> {
        let not_here = |why| Error::NotHere { name: name.to_string(), why };
        let folder = self.cache.repo(name.repo());
        let commit = folder.commit(name.revision()).ok_or_else(|| not_here(None))?;
        let files = folder.files(&commit);
        if files.is_empty() {
            return Err(not_here(None));
        }
        let selection = match select(name.repo(), &files, name.quant()) {
            Ok(selection) => selection,
            Err(e) => return Err(not_here(Some(e.to_string()))),
        };
        let snapshot = folder.snapshot(&commit);
        if let Some(lost) = lost(&snapshot, &selection) {
            return Err(not_here(Some(format!("its {lost} is missing"))));
        }
        Ok(found(name, commit, &snapshot, &selection))
    }

    /// Asks the hub what a model's files are and how large.
    pub fn ask(&self, name: &Name) -> Result<Offer> {
        let stop = &NEVER;
        let client = self.client(&name.to_string())?;
        let repo = name.repo();
        let info = api::info(&client, repo, name.revision(), stop)?;
        let names: Vec<String> = info.files.iter().map(|file| file.name.clone()).collect();
        let selection = select(repo, &names, name.quant())?;
        let folder = self.cache.repo(repo);
        let (mut files, mut total, mut missing) = (vec![], 0u64, 0u64);
        for wanted in &selection.files {
            let Some(remote) = info.files.iter().find(|file| file.name == *wanted) else {
                continue;
            };
            let (size, etag) = complete(&client, repo, &info.commit, remote, stop)?;
            total = total.saturating_add(size);
            let is_there = fs::metadata(folder.blob(&etag)).is_ok_and(|m| m.len() == size);
            if !is_there {
                let left = download::left_over(&folder, &etag, size);
                missing = missing.saturating_add(size - left.min(size));
            }
            files.push(Wanted { name: wanted.clone(), size, etag });
        }
        Ok(Offer { name: name.clone(), commit: info.commit, total, missing, selection, files })
    }

    /// Brings what an offer names. What is there already is not asked for again.
    pub fn pull(&self, offer: &Offer, watch: &Watch) -> Result<Found> {
        let name = &offer.name;
        let stop = watch.stop.unwrap_or(&NEVER);
        let client = self.client(&name.to_string())?;
        self.cache.make()?;
        self.need_space(offer.missing)?;
        let folder = self.cache.repo(name.repo());
        let mut before = 0;
        for file in &offer.files {
            let about =
                About { repo: name.repo(), revision: name.revision(), file: Some(&file.name) };
            let job = Job {
                folder: &folder,
                address: file_address(&client, name.repo(), &offer.commit, &file.name),
                about,
                file: &file.name,
                etag: &file.etag,
                size: file.size,
            };
            let tell = |step: Step, done: u64| {
                if let Some(tell) = watch.tell {
                    let done = before + done.min(file.size);
                    tell(&Progress { file: file.name.clone(), step, done, total: offer.total });
                }
            };
            download::fetch(&client, &job, self.transfer, stop, &tell)?;
            folder.link(&offer.commit, &file.name, &file.etag)?;
            before += file.size;
        }
        // Last, so that whoever looks finds the old commit until the new one is whole.
        folder.write_ref(name.revision(), &offer.commit)?;
        let snapshot = folder.snapshot(&offer.commit);
        if let Some(lost) = lost(&snapshot, &offer.selection) {
            let what = format!("its index names {lost}, which it does not have");
            return Err(Error::NoFiles { repo: name.repo().into(), what });
        }
        Ok(found(name, offer.commit.clone(), &snapshot, &offer.selection))
    }

    /// The models in the cache, whoever downloaded them.
    pub fn list(&self) -> Result<Vec<Cached>> {
        let mut all = vec![];
        for repo in self.cache.repos()? {
            let folder = self.cache.repo(&repo);
            let mut commits: Vec<String> = folder.commit("main").into_iter().collect();
            commits.extend(folder.commits());
            let whole = commits.into_iter().find_map(|commit| {
                let selection = select(&repo, &folder.files(&commit), None).ok()?;
                let path = folder.snapshot(&commit);
                lost(&path, &selection).is_none().then_some((commit, path, selection))
            });
            if let Some((commit, path, selection)) = whole {
                let bytes = bytes_below(&folder.path);
                all.push(Cached { repo, commit, model: selection.model, path, bytes });
            }
        }
        Ok(all)
    }

    /// Removes a model's repository from the cache; the bytes that are free now.
    pub fn remove(&self, name: &Name) -> Result<u64> {
        let folder = self.cache.repo(name.repo());
        if !folder.path.is_dir() {
            return Err(Error::NotHere { name: name.to_string(), why: None });
        }
        // A download that is under way would write into what is removed.
        let mut held = vec![];
        for entry in fs::read_dir(folder.locks()).into_iter().flatten().flatten() {
            let Ok(lock) = fs::OpenOptions::new().write(true).open(entry.path()) else { continue };
            if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
                return Err(Error::Busy { repo: name.repo().into() });
            }
            held.push(lock);
        }
        let bytes = bytes_below(&folder.path);
        fs::remove_dir_all(&folder.path).map_err(Error::io(&folder.path))?;
        drop(held);
        // Empty files, whose absence nobody notices.
        let _ = fs::remove_dir_all(folder.locks());
        Ok(bytes)
    }

    fn client(&self, what: &str) -> Result<Client> {
        if self.settings.offline {
            return Err(Error::Offline { what: what.into() });
        }
        Client::new(&self.settings, self.patience)
    }

    /// Refuses before the first byte what the disk can't hold.
    fn need_space(&self, need: u64) -> Result<()> {
        let at = self.settings.cache.clone();
        // Where the system does not tell, writing will.
        match fs4::available_space(&at) {
            Ok(have) if have < need => Err(Error::Disk { need, have, at }),
            _ => Ok(()),
        }
    }
}

fn found(name: &Name, commit: String, snapshot: &Path, selection: &Selection) -> Found {
    let at = |file: &String| snapshot.join(file);
    Found {
        model: selection.model.as_ref().map_or(snapshot.to_path_buf(), at),
        towers: selection.towers.as_ref().map(at),
        recipe: name.recipe().map(String::from),
        commit,
        files: selection.files.iter().map(at).collect(),
    }
}

/// A file that a folder of a commit lacks.
fn lost(snapshot: &Path, selection: &Selection) -> Option<String> {
    let mut needed: BTreeSet<String> = selection.files.iter().cloned().collect();
    if needed.contains(INDEX) {
        let text = fs::read_to_string(snapshot.join(INDEX)).unwrap_or_default();
        let index: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let names = index.get("weight_map").and_then(|map| map.as_object()).into_iter().flatten();
        let shards: Vec<String> =
            names.filter_map(|(_, file)| file.as_str().map(String::from)).collect();
        if shards.is_empty() {
            return Some(INDEX.into());
        }
        needed.extend(shards);
    }
    if selection.model.is_none() {
        needed.insert("config.json".into());
    }
    needed.into_iter().find(|file| !snapshot.join(file).is_file())
}

/// Bytes of all files below a folder that are there themselves.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
            Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |m| m.len()),
            _ => 0,
        })
        .sum()
}
