//! One model that is served, and its uses.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lapidary::{Engine, Load, Model, Plan};
use tokio::sync::{Semaphore, watch};

use super::Result;
use super::config::KeepAlive;
use super::failure::Failure;
use super::registry::Making;

/// What a model is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelState {
    /// It takes no memory.
    Unloaded,
    /// It is being loaded.
    Loading,
    /// It answers.
    Loaded,
}

impl ModelState {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            ModelState::Unloaded => "unloaded",
            ModelState::Loading => "loading",
            ModelState::Loaded => "loaded",
        }
    }
}

/// One model that is served.
pub struct Entry {
    pub(super) name: String,
    pub(super) model: Model,
    pub(super) load: Option<Load>,
    pub(super) make: Making,
    pub(super) created: SystemTime,
    pub(super) plan: OnceLock<Option<Plan>>,
    pub(super) state: Mutex<State>,
    /// Told when the state changes.
    pub(super) changed: watch::Sender<()>,
    /// Requests that may be open at once.
    pub(super) room: Arc<Semaphore>,
    pub(super) n_room: usize,
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// Why the last loading failed.
    pub(super) failure: Option<Failure>,
    /// Requests that use it.
    pub(super) users: usize,
    pub(super) last_used: Instant,
    pub(super) keep_alive: KeepAlive,
    /// How often it was loaded.
    pub(super) generation: u64,
    /// What the engine had done when it was last looked at, and since when it is so.
    pub(super) seen: (u64, Instant),
}

pub(super) enum Phase {
    Unloaded,
    Loading,
    Loaded(Engine),
}

/// The use of a loaded model. It stays loaded as long as there is one.
#[derive(Clone)]
pub struct Lease(pub(super) Arc<Used>);

pub(super) struct Used {
    pub(super) entry: Arc<Entry>,
    pub(super) engine: Engine,
    pub(super) generation: u64,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment, so a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    /// What requests call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// When it was first served.
    pub fn created(&self) -> SystemTime {
        self.created
    }

    /// The engine, if it is loaded.
    pub fn engine(&self) -> Option<Engine> {
        match &lock(&self.state).phase {
            Phase::Loaded(engine) => Some(engine.clone()),
            _ => None,
        }
    }

    /// What it is doing.
    pub fn state(&self) -> ModelState {
        match &lock(&self.state).phase {
            Phase::Unloaded => ModelState::Unloaded,
            Phase::Loading => ModelState::Loading,
            Phase::Loaded(_) => ModelState::Loaded,
        }
    }

    /// Why it could not be loaded the last time.
    pub fn failure(&self) -> Option<Failure> {
        lock(&self.state).failure.clone()
    }

    /// What it takes, or would take; `None` where that can't be told.
    pub fn plan(&self) -> Option<Plan> {
        if let Some(engine) = self.engine() {
            return Some(engine.plan().clone());
        }
        self.plan.get_or_init(|| self.load.as_ref()?.plan(&self.model).ok()).clone()
    }

    /// Tokens that prompt and answer may fill together.
    pub fn context(&self) -> usize {
        let loaded = self.engine().map(|engine| engine.max_context());
        let planned = || self.plan().map(|plan| plan.context as usize);
        loaded.or_else(planned).unwrap_or(self.model.metadata().max_context_len as usize)
    }

    /// When it will be unloaded if nobody uses it; `None` if never, or if it is not loaded.
    pub fn expires(&self) -> Option<SystemTime> {
        let state = lock(&self.state);
        match (&state.phase, state.keep_alive) {
            (Phase::Loaded(_), KeepAlive::For(time)) => {
                let left = if state.users > 0 {
                    time
                } else {
                    time.saturating_sub(state.last_used.elapsed())
                };
                SystemTime::now().checked_add(left)
            }
            _ => None,
        }
    }

    /// Keeps it loaded for so long after its last use, until it is loaded again.
    pub fn keep_alive(&self, keep: KeepAlive) {
        lock(&self.state).keep_alive = keep;
    }

    /// Room for one request and `n` answers of it; without it, the queue is full.
    pub fn admit(&self, n: usize) -> Result<tokio::sync::OwnedSemaphorePermit> {
        if n > self.n_room {
            let what = format!("{n} answers are wanted and {} may be under way", self.n_room);
            return Err(Failure::param("n", what));
        }
        let wanted = u32::try_from(n).unwrap_or(u32::MAX);
        self.room
            .clone()
            .try_acquire_many_owned(wanted)
            .map_err(|_| Failure::queue_full(self.n_room - self.room.available_permits()))
    }

    /// Requests that may be under way.
    pub fn n_room(&self) -> usize {
        self.n_room
    }

    pub(super) fn unused_since(&self) -> Option<Instant> {
        let state = lock(&self.state);
        let is_loaded = matches!(state.phase, Phase::Loaded(_));
        (is_loaded && state.users == 0).then_some(state.last_used)
    }

    pub(super) fn take_unused(&self) -> Option<Engine> {
        let mut state = lock(&self.state);
        if state.users > 0 || !matches!(state.phase, Phase::Loaded(_)) {
            return None;
        }
        match std::mem::replace(&mut state.phase, Phase::Unloaded) {
            Phase::Loaded(engine) => Some(engine),
            _ => None,
        }
    }

    pub(super) fn is_expired(&self) -> bool {
        let state = lock(&self.state);
        let is_unused = matches!(state.phase, Phase::Loaded(_)) && state.users == 0;
        match state.keep_alive {
            KeepAlive::For(time) => is_unused && state.last_used.elapsed() >= time,
            KeepAlive::Forever => false,
        }
    }

    pub(super) fn is_stalled(&self, limit: Duration) -> bool {
        let mut state = lock(&self.state);
        let Phase::Loaded(engine) = &state.phase else { return false };
        let metrics = engine.metrics();
        if metrics.open == 0 || metrics.steps != state.seen.0 {
            state.seen = (metrics.steps, Instant::now());
            return false;
        }
        state.seen.1.elapsed() >= limit
    }
}

impl Lease {
    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The model that is served.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.0.entry
    }

    /// The engine is broken: the next request has the model loaded again.
    pub fn discard(&self) {
        let mut state = lock(&self.0.entry.state);
        if state.generation == self.0.generation && matches!(state.phase, Phase::Loaded(_)) {
            state.phase = Phase::Unloaded;
        }
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        let mut state = lock(&self.entry.state);
        state.users = state.users.saturating_sub(1);
        state.last_used = Instant::now();
    }
}
