//! The models that are served: loaded when somebody asks, unloaded when nobody does.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use lapidary::{Engine, Load, Model};
use tokio::sync::{Semaphore, watch};

use super::Result;
use super::config::KeepAlive;
use super::entry::{Entry, Lease, ModelState, Phase, State, Used, lock};
use super::failure::Failure;
use super::log::Log;

/// Puts a model on a device.
pub type Making = Box<dyn Fn() -> lapidary::Result<Engine> + Send + Sync>;

/// A model that shall be served.
pub struct Source {
    /// What requests call it.
    pub name: String,
    /// The model, open.
    pub model: Model,
    /// How it is loaded; `None` if nothing is planned before it is.
    pub load: Option<Load>,
    /// Loads it.
    pub make: Making,
}

impl Source {
    /// A model that is loaded as told.
    pub fn new(name: impl Into<String>, model: Model, load: Load) -> Self {
        let (loaded, how) = (model.clone(), load.clone());
        let make = Box::new(move || loaded.load(how.clone()));
        Source { name: name.into(), model, load: Some(load), make }
    }

    /// The name of a model that was given none: the last part of its path, without its ending.
    pub fn name_of(path: &str) -> String {
        let name = Path::new(path).file_name().map_or(path.into(), |n| n.to_string_lossy());
        let endings = [".gguf", ".lap", ".safetensors"];
        let short = endings.iter().find_map(|ending| name.strip_suffix(ending));
        short.unwrap_or(&name).to_string()
    }
}

/// All models that are served.
pub struct Registry {
    entries: Vec<Arc<Entry>>,
    /// The most bytes of all together.
    memory: Option<u64>,
    load_time: Duration,
    keep_alive: KeepAlive,
    log: Log,
    /// Held by whoever loads or unloads: plans are then true.
    loading: Mutex<()>,
    /// Whether nothing is loaded any more.
    is_closed: AtomicBool,
}

impl Registry {
    /// Of these models, of which each may have so many requests open.
    pub fn new(
        sources: Vec<Source>,
        n_room: usize,
        keep_alive: Option<KeepAlive>,
        memory: Option<u64>,
        load_time: Duration,
        log: Log,
    ) -> Result<Self, String> {
        if sources.is_empty() {
            return Err(
                "no model was named; `lapidary serve pebble` serves the built-in one".into()
            );
        }
        // Who serves one model wants it ready; who serves several wants room for the others.
        let several = sources.len() > 1;
        let default =
            if several { KeepAlive::For(Duration::from_secs(300)) } else { KeepAlive::Forever };
        let keep_alive = keep_alive.unwrap_or(default);
        let mut entries: Vec<Arc<Entry>> = Vec::new();
        for source in sources {
            let Source { name, model, load, make } = source;
            if entries.iter().any(|e| e.name == name) {
                return Err(format!("two models are called `{name}`; name them by NAME=PATH"));
            }
            if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
                return Err(format!("`{name}` is no name for a model; name it by NAME=PATH"));
            }
            let state = State {
                phase: Phase::Unloaded,
                failure: None,
                users: 0,
                last_used: Instant::now(),
                keep_alive,
                generation: 0,
                seen: (0, Instant::now()),
            };
            entries.push(Arc::new(Entry {
                name,
                model,
                load,
                make,
                created: SystemTime::now(),
                plan: OnceLock::new(),
                state: Mutex::new(state),
                changed: watch::Sender::new(()),
                room: Arc::new(Semaphore::new(n_room)),
                n_room,
            }));
        }
        let (loading, is_closed) = (Mutex::new(()), AtomicBool::new(false));
        Ok(Registry { entries, memory, load_time, keep_alive, log, loading, is_closed })
    }

    /// All models, in the order they were given.
    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    /// The model of a name; without one, the first.
    pub fn find(&self, name: Option<&str>) -> Result<&Arc<Entry>> {
        let Some(name) = name else {
            return self.entries.first().ok_or_else(|| Failure::no_model(""));
        };
        let exact = self.entries.iter().find(|e| e.name == name);
        // Ollama's clients add this to every name that has no tag.
        let plain = name.strip_suffix(":latest");
        let found = exact.or_else(|| self.entries.iter().find(|e| Some(e.name.as_str()) == plain));
        found.ok_or_else(|| Failure::no_model(name))
    }

    /// The use of a model, which is loaded first if it must be.
    pub async fn lease(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Lease> {
        let limit = tokio::time::Instant::now() + self.load_time;
        let mut changed = entry.changed.subscribe();
        let mut waited = false;
        loop {
            {
                let mut state = lock(&entry.state);
                match &state.phase {
                    Phase::Loaded(engine) => {
                        let engine = engine.clone();
                        state.users += 1;
                        let generation = state.generation;
                        let entry = entry.clone();
                        return Ok(Lease(Arc::new(Used { entry, engine, generation })));
                    }
                    Phase::Loading => {}
                    Phase::Unloaded => match state.failure.take().filter(|_| waited) {
                        Some(failure) => {
                            state.failure = Some(failure.clone());
                            return Err(failure);
                        }
                        None => {
                            let (registry, entry) = (self.clone(), entry.clone());
                            // A thread of its own: nobody who ends waits for it.
                            let thread = std::thread::Builder::new().name("load".to_string());
                            let spawned = thread.spawn(move || registry.load(&entry));
                            spawned.map_err(|e| Failure::internal(format!("loading: {e}")))?;
                            state.phase = Phase::Loading;
                        }
                    },
                }
            }
            waited = true;
            let change = tokio::time::timeout_at(limit, changed.changed()).await;
            if change.is_err() {
                return Err(Failure::loading(&entry.name));
            }
        }
    }

    /// Loads a model whose state says that it is being loaded.
    fn load(&self, entry: &Arc<Entry>) {
        let begun = Instant::now();
        let loaded = {
            let _one = lock(&self.loading);
            let make = || {
                if self.is_closed() {
                    return Err(Failure::stopping());
                }
                self.make_room(entry)?;
                Ok((entry.make)()?)
            };
            // Whoever waits for the model is told, whatever happens.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(make))
                .unwrap_or_else(|_| Err(Failure::internal("loading panicked")))
        };
        let name = ("model", entry.name.as_str().into());
        let mut state = lock(&entry.state);
        let loaded = match loaded {
            // It came too late.
            Ok(_) if self.is_closed() => Err(Failure::stopping()),
            loaded => loaded,
        };
        match loaded {
            Ok(engine) => {
                let seconds = super::log::round(begun.elapsed().as_secs_f64());
                let memory = engine.plan().memory.total();
                let more = [name, ("seconds", seconds.into()), ("bytes", memory.into())];
                self.log.note("info", "loaded", &more);
                state.generation += 1;
                state.last_used = Instant::now();
                state.keep_alive = self.keep_alive;
                state.seen = (0, Instant::now());
                state.failure = None;
                state.phase = Phase::Loaded(engine);
            }
            Err(failure) => {
                let why = failure.detail.as_deref().unwrap_or(&failure.message).to_string();
                self.log.note("error", "can't load", &[name, ("detail", why.into())]);
                state.failure = Some(failure);
                state.phase = Phase::Unloaded;
            }
        }
        drop(state);
        entry.changed.send_replace(());
    }

    /// Unloads models that nobody uses, the longest unused first, until the plan fits.
    fn make_room(&self, entry: &Arc<Entry>) -> Result<()> {
        let Some(load) = &entry.load else { return Ok(()) };
        loop {
            let plan = load.plan(&entry.model)?;
            let need = plan.memory.total();
            let others =
                self.entries.iter().filter_map(|e| Some(e.engine()?.plan().memory.total()));
            let sum = others.fold(need, u64::saturating_add);
            let is_over = self.memory.filter(|limit| sum > *limit);
            let why = match (plan.shortage(), is_over) {
                (None, None) => return Ok(()),
                (Some(shortage), _) => shortage,
                (None, Some(limit)) => {
                    format!("it takes {need} bytes, and all models may take {limit}")
                }
            };
            let unused = self.entries.iter().filter(|e| !Arc::ptr_eq(e, entry));
            let unused = unused.filter_map(|e| Some((e.unused_since()?, e)));
            let Some((_, oldest)) = unused.min_by_key(|(since, _)| *since) else {
                let name = &entry.name;
                return Err(Failure::no_room(format!(
                    "the model `{name}` does not fit beside those in use: {why}"
                )));
            };
            self.unload(oldest);
        }
    }

    /// Unloads a model, unless it is used. The caller holds the lock on loading.
    fn unload(&self, entry: &Entry) {
        if let Some(engine) = entry.take_unused() {
            engine.unload();
            self.log.note("info", "unloaded", &[("model", entry.name.as_str().into())]);
            entry.changed.send_replace(());
        }
    }

    /// Unloads what was not used for longer than it is kept. While a model is being loaded nothing is
    /// done: that takes minutes, and whoever sweeps comes again.
    pub fn sweep(&self) {
        let is_due = |e: &&Arc<Entry>| e.is_expired();
        if self.entries.iter().any(|e| is_due(&e)) {
            let _one = match self.loading.try_lock() {
                Ok(one) => one,
                Err(TryLockError::Poisoned(e)) => PoisonError::into_inner(e),
                Err(TryLockError::WouldBlock) => return,
            };
            self.entries.iter().filter(is_due).for_each(|e| self.unload(e));
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Models whose engine has something to do and did nothing for so long.
    pub fn stalled(&self, limit: Duration) -> Vec<String> {
        let is_stalled = |e: &&Arc<Entry>| e.is_stalled(limit);
        self.entries.iter().filter(is_stalled).map(|e| e.name.clone()).collect()
    }

    /// Whether nothing is loaded and the last try failed.
    pub fn has_failed(&self) -> bool {
        let failed = self.entries.iter().any(|e| lock(&e.state).failure.is_some());
        failed && self.entries.iter().all(|e| e.state() == ModelState::Unloaded)
    }

    /// Unloads everything. What is being loaded is let go of when it is there.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        for entry in &self.entries {
            let phase = std::mem::replace(&mut lock(&entry.state).phase, Phase::Unloaded);
            if let Phase::Loaded(engine) = phase {
                engine.unload();
            }
        }
    }
}
