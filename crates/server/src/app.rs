//! What all handlers share.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::http::Guard;
use crate::openai::Store;
use crate::service::{
    Config, Entry, Failure, Keys, Lease, Limits, Log, Metrics, Registry, Result, Source,
};

/// What all handlers share.
#[derive(Clone)]
pub struct App(Arc<Inner>);

struct Inner {
    limits: Limits,
    keys: Keys,
    guard: Guard,
    registry: Arc<Registry>,
    metrics: Metrics,
    log: Log,
    started: SystemTime,
    has_page: bool,
    /// No more requests are taken.
    stopping: CancellationToken,
    /// Answers under way end.
    ending: CancellationToken,
    /// One for each thread that makes prompts.
    turns: Arc<Semaphore>,
    /// Answers that later requests go on from.
    responses: Store,
}

impl App {
    /// For these models.
    pub fn new(config: &Config, sources: Vec<Source>, log: Log) -> Result<Self, String> {
        config.check()?;
        let limits = config.limits.clone();
        let room = limits.queue.saturating_add(config.parallel as usize);
        let registry = Registry::new(
            sources,
            room,
            config.keep_alive,
            config.memory.map(|bytes| bytes.0),
            Duration::from_secs(limits.load_seconds),
            log.clone(),
        )?;
        let turns = std::thread::available_parallelism().map_or(2, |n| n.get());
        Ok(App(Arc::new(Inner {
            keys: Keys::new(&config.keys()?),
            guard: Guard::new(&config.allow_host, &config.allow_origin)?,
            registry: Arc::new(registry),
            metrics: Metrics::new(),
            log,
            started: SystemTime::now(),
            has_page: !config.no_page,
            stopping: CancellationToken::new(),
            ending: CancellationToken::new(),
            turns: Arc::new(Semaphore::new(turns)),
            responses: Store::new(limits.stored_responses, limits.stored_bytes),
            limits,
        })))
    }

    /// How much of everything there may be.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Who may ask.
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// From where.
    pub fn guard(&self) -> &Guard {
        &self.0.guard
    }

    /// The models.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.0.registry
    }

    /// What is counted.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.0.log
    }

    /// When the server started.
    pub fn started(&self) -> SystemTime {
        self.0.started
    }

    /// Whether there is a web page.
    pub fn has_page(&self) -> bool {
        self.0.has_page
    }

    /// Answers that later requests go on from.
    pub fn responses(&self) -> &Store {
        &self.0.responses
    }

    /// Told when no more requests are taken.
    pub fn stopping(&self) -> &CancellationToken {
        &self.0.stopping
    }

    /// Whether the server is about to end.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.is_cancelled()
    }

    /// Told when answers under way must end.
    pub fn ending(&self) -> &CancellationToken {
        &self.0.ending
    }

    /// The model of a name; without one, the first.
    pub fn find(&self, name: Option<&str>) -> Result<&Arc<Entry>> {
        self.0.registry.find(name)
    }

    /// The use of the model of a name, which is loaded first if it must be.
    pub async fn lease(&self, name: Option<&str>) -> Result<Lease> {
        let entry = self.find(name)?;
        if self.is_stopping() {
            return Err(Failure::stopping());
        }
        tokio::select! {
            lease = self.0.registry.lease(entry) => lease,
            // Loading may take longer than the server has to end.
            () = self.0.ending.cancelled() => Err(Failure::stopping()),
        }
    }

    /// Models whose engine does nothing though it has something to do.
    pub fn stalled(&self) -> Vec<String> {
        self.0.registry.stalled(Duration::from_secs(self.0.limits.stall_seconds))
    }

    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit> {
        let turn = self.0.turns.clone().acquire_owned().await;
        turn.map_err(|_| Failure::internal("no more prompts are made"))
    }
}
