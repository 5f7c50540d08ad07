//! Models by name: what there is, what is here, and bringing it here.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapidary::hub::{self, Entry, Given, Name, Settings, Step, Table, Variant, Watch};

use crate::error::{LapidaryError, Result};
use crate::work::{Task, aside};

/// Where models by name are kept, and where they come from. What is not given is as Hugging Face's
/// variables of the environment say.
#[derive(Clone, Debug, Default, PartialEq, uniffi::Record)]
pub struct HubOptions {
    /// The folder that they are kept in.
    #[uniffi(default = None)]
    pub cache: Option<String>,
    /// The address of the hub.
    #[uniffi(default = None)]
    pub endpoint: Option<String>,
    /// A token, for models whose terms must be accepted.
    #[uniffi(default = None)]
    pub token: Option<String>,
    /// Asks nothing of the network.
    #[uniffi(default = false)]
    pub offline: bool,
}

/// Models by name: the table of released models, those on this machine, and downloads.
#[derive(Debug, uniffi::Object)]
pub struct Hub(Arc<hub::Hub>);

/// A released model.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct KnownModel {
    /// Its name: `gemma4:e2b`.
    pub name: String,
    /// What its makers call it.
    pub title: String,
    /// Numbers in all of its weights.
    pub parameters: u64,
    /// What it takes: `text`, `image`, `video`, `audio`.
    pub input: Vec<String>,
    /// Its licence.
    pub licence: String,
    /// Whether its terms must be accepted before a download.
    pub gated: bool,
    /// The ways to have it.
    pub variants: Vec<KnownVariant>,
}

/// One way to have a model.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct KnownVariant {
    /// The name to open: `gemma4:e2b-it-int4`.
    pub name: String,
    /// The repository that it comes from.
    pub repo: String,
    /// The recipe that quantises it when it is opened.
    pub recipe: Option<String>,
    /// Whether the model's plain name means it.
    pub is_default: bool,
    /// Whether it only guesses tokens for another model.
    pub is_drafter: bool,
    /// Bytes to download, where they are known beforehand.
    pub download_bytes: Option<u64>,
}

/// What a download would bring.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Offer {
    /// The model.
    pub name: String,
    /// The commit it is of.
    pub commit: String,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// Bytes that are not here yet.
    pub missing_bytes: u64,
}

/// A model that was downloaded.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct DownloadedModel {
    /// Its repository: `org/repo`, a name that can be opened.
    pub repo: String,
    /// The commit it is of.
    pub commit: String,
    /// Where it is.
    pub path: String,
    /// Bytes that it takes.
    pub bytes: u64,
}

/// How far a download is.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct DownloadProgress {
    /// The file.
    pub file: String,
    /// Whether its checksum is computed; else it comes.
    pub is_checking: bool,
    /// Bytes of all files that have come.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
    /// The same from 0 to 1.
    pub fraction: f64,
}

impl HubOptions {
    fn hub(&self) -> Result<hub::Hub> {
        let given = |name: &str| match name {
            "HF_HUB_CACHE" => self.cache.as_ref().map(OsString::from),
            "HF_ENDPOINT" => self.endpoint.as_ref().map(OsString::from),
            "HF_TOKEN" => self.token.as_ref().map(OsString::from),
            "HF_HUB_OFFLINE" => self.offline.then(|| "1".into()),
            _ => None,
        };
        let settings = Settings::of(|name| given(name).or_else(|| std::env::var_os(name)))?;
        Ok(hub::Hub::new(settings))
    }

    /// How a model is opened that is kept where these say: what to open, its towers and its recipe.
    pub(crate) fn locate(&self, source: &str) -> Result<Option<hub::Found>> {
        // What is neither is told by whoever opens it.
        let Ok(Given::Name(name)) = hub::given(source) else { return Ok(None) };
        Ok(Some(self.hub()?.find(&name)?))
    }
}

#[uniffi::export]
impl Hub {
    /// The cache and the hub that the options or the environment name.
    #[uniffi::constructor(default(options = None))]
    pub fn new(options: Option<HubOptions>) -> Result<Arc<Self>> {
        Ok(Arc::new(Hub(Arc::new(options.unwrap_or_default().hub()?))))
    }

    /// All released models, smallest first.
    pub fn models(&self) -> Vec<KnownModel> {
        Table::get().models.iter().map(KnownModel::of).collect()
    }

    /// The backends that this kind of system prefers, best first; none where it prefers none.
    pub fn platform_backends(&self) -> Vec<String> {
        Table::get().platform(std::env::consts::OS).to_vec()
    }

    /// Whether all files of a model are on this machine.
    pub async fn is_downloaded(&self, name: String) -> Result<bool> {
        let hub = self.0.clone();
        aside(move || match hub.find(&Name::parse(&name)?) {
            Ok(_) => Ok(true),
            Err(hub::Error::NotHere { .. }) => Ok(false),
            Err(e) => Err(e.into()),
        })
        .await
    }

    /// Asks the hub what a download would bring.
    pub async fn offer(&self, name: String) -> Result<Offer> {
        let hub = self.0.clone();
        aside(move || {
            let offer = hub.ask(&Name::parse(&name)?)?;
            Ok(Offer {
                name: offer.name.to_string(),
                commit: offer.commit.clone(),
                total_bytes: offer.total,
                missing_bytes: offer.missing,
            })
        })
        .await
    }

    /// Begins to download a model. One that this machine's memory can't hold is refused before the
    /// first byte; one that is here already ends at once.
    pub fn download(&self, name: String) -> Arc<Download> {
        Arc::new(Download::start(self.0.clone(), name))
    }

    /// The models on this machine, whoever downloaded them.
    pub async fn list(&self) -> Result<Vec<DownloadedModel>> {
        let hub = self.0.clone();
        aside(move || {
            let model = |cached: hub::Cached| DownloadedModel {
                path: match &cached.model {
                    Some(file) => cached.path.join(file).display().to_string(),
                    None => cached.path.display().to_string(),
                },
                repo: cached.repo,
                commit: cached.commit,
                bytes: cached.bytes,
            };
            Ok(hub.list()?.into_iter().map(model).collect())
        })
        .await
    }

    /// Removes a model from this machine. Returns the bytes that are free now.
    pub async fn remove(&self, name: String) -> Result<u64> {
        let hub = self.0.clone();
        aside(move || Ok(hub.remove(&Name::parse(&name)?)?)).await
    }
}

/// A model on its way to this machine. Dropping it cancels; what has come is kept, and the next
/// download goes on from there.
#[derive(uniffi::Object)]
pub struct Download {
    task: Arc<Task<DownloadProgress, String>>,
    stop: Arc<AtomicBool>,
}

impl Download {
    fn start(hub: Arc<hub::Hub>, name: String) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let flag = stop.clone();
        let task = Task::start(move |task: &Arc<Task<DownloadProgress, String>>| {
            let offer = hub.ask(&Name::parse(&name)?)?;
            lapidary::check_memory(&offer)?;
            let tell = |told: &hub::Progress| task.tell(DownloadProgress::of(told));
            let found =
                hub.pull(&offer, &Watch { tell: Some(&tell), stop: Some(flag.as_ref()) })?;
            Ok(found.model.display().to_string())
        });
        Download { task, stop }
    }
}

#[uniffi::export]
impl Download {
    /// How far it is: the newest that was not told yet. `None` when it has ended, well or not.
    pub async fn next(&self) -> Option<DownloadProgress> {
        self.task.next().await
    }

    /// Waits for the end. Returns the path; the name can be opened as well.
    pub async fn finish(&self) -> Result<String> {
        self.task.result().await
    }

    /// Gives it up. What has come is kept.
    pub fn cancel(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.task.end(Err(LapidaryError::cancelled()));
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl DownloadProgress {
    fn of(told: &hub::Progress) -> Self {
        let (done, total) = (told.done, told.total);
        DownloadProgress {
            file: told.file.clone(),
            is_checking: told.step == Step::Checking,
            done,
            total,
            fraction: if total == 0 { 1.0 } else { done as f64 / total as f64 },
        }
    }
}

impl KnownModel {
    fn of(entry: &Entry) -> Self {
        let variant = |variant: &Variant| KnownVariant {
            name: entry.name_of(variant),
            repo: variant.repo.clone(),
            recipe: variant.recipe.clone(),
            is_default: std::ptr::eq(variant, entry.default_variant()),
            is_drafter: variant.is_drafter(),
            download_bytes: entry.download_bytes(variant),
        };
        KnownModel {
            name: entry.name(),
            title: entry.title.clone(),
            parameters: entry.params,
            input: entry.input.clone(),
            licence: entry.licence.name().to_string(),
            gated: entry.gated,
            variants: entry.variants.iter().map(variant).collect(),
        }
    }
}

impl From<hub::Error> for LapidaryError {
    fn from(e: hub::Error) -> Self {
        lapidary::Error::from(e).into()
    }
}
