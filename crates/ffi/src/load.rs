//! From an open model to an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::devices::DeviceInfo;
use crate::engine::Engine;
use crate::error::{LapidaryError, Result};
use crate::work::Task;

/// How a model is loaded. Every choice has a good default.
#[derive(Clone, Debug, Default, PartialEq, uniffi::Record)]
pub struct LoadOptions {
    /// Uses this backend and no other: `cpu`, `vulkan`, `metal`; else the best.
    #[uniffi(default = None)]
    pub backend: Option<String>,
    /// Uses this device: `1`, or `vulkan:1`.
    #[uniffi(default = None)]
    pub device: Option<String>,
    /// Positions of one sequence, prompt and answer together; else the model's own, but at most 8192.
    #[uniffi(default = None)]
    pub context: Option<u32>,
    /// Sequences that are answered at once; else 4.
    #[uniffi(default = None)]
    pub sequences: Option<u32>,
    /// The most bytes that keys and values of past tokens may take.
    #[uniffi(default = None)]
    pub kv_memory: Option<u64>,
    /// How keys and values are stored.
    #[uniffi(default = None)]
    pub kv_type: Option<KvType>,
    /// Does not round activations where they meet quantised weights.
    #[uniffi(default = false)]
    pub exact: bool,
    /// Worker threads; else what the machine allows.
    #[uniffi(default = None)]
    pub threads: Option<u32>,
    /// Tokens of one sequence in one call; else what suits the device.
    #[uniffi(default = None)]
    pub chunk: Option<u32>,
    /// Loads neither vision nor audio.
    #[uniffi(default = false)]
    pub text_only: bool,
    /// What guesses the next tokens; else the model's drafter, if it has one.
    #[uniffi(default = None)]
    pub draft: Option<Draft>,
    /// Keeps packed weights in this folder, so that a second start is quick; `off` for nowhere.
    #[uniffi(default = None)]
    pub pack_cache: Option<String>,
    /// Requests that may wait; else 64.
    #[uniffi(default = None)]
    pub queue: Option<u32>,
    /// Events of one answer that may wait for their reader; else 1024.
    #[uniffi(default = None)]
    pub events: Option<u32>,
    /// How long the engine waits, in all, for the reader of one answer; else 5000 ms.
    #[uniffi(default = None)]
    pub patience_ms: Option<u64>,
}

/// How keys and values of past tokens are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum KvType {
    /// 32 bits.
    F32,
    /// 16 bits.
    Bf16,
    /// 8 bits.
    Int8,
}

/// What guesses the next tokens of an answer. The answer is the same with and without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum Draft {
    /// The model's drafter, if it has one.
    Auto,
    /// Nothing.
    Off,
    /// The text itself: names, code and quotations come again.
    Lookup,
    /// The model's drafter; loading fails if it has none.
    Model,
}

/// What loading a model would take, and what was decided.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Plan {
    /// The model's name.
    pub model: String,
    /// The backend that was chosen.
    pub backend: String,
    /// The device that was chosen.
    pub device: DeviceInfo,
    /// Why each better backend was passed over.
    pub passed_over: Vec<String>,
    /// Positions of one sequence.
    pub context: u32,
    /// Positions that the model was made for.
    pub model_context: u32,
    /// Sequences that are answered at once.
    pub sequences: u32,
    /// Tokens that are kept, of all sequences together.
    pub positions: u64,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Whether activations are not rounded.
    pub exact: bool,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of keys and values.
    pub kv_bytes: u64,
    /// Bytes that a call needs.
    pub activation_bytes: u64,
    /// All of them.
    pub total_bytes: u64,
    /// Whether the device can hold it.
    pub fits: bool,
    /// Why it does not fit, and what to do.
    pub shortage: Option<String>,
    /// All of it, for people.
    pub text: String,
}

/// How far loading is.
#[derive(Clone, Copy, Debug, PartialEq, uniffi::Record)]
pub struct LoadProgress {
    /// Bytes of weights that are ready.
    pub done: u64,
    /// Bytes of all weights.
    pub total: u64,
    /// The same from 0 to 1.
    pub fraction: f64,
}

impl LoadOptions {
    /// In the library's words.
    pub(crate) fn load(&self) -> Result<lapidary::Load> {
        let mut load = lapidary::Load::new();
        if let Some(name) = &self.backend {
            load = load.backend(name);
        }
        if let Some(device) = &self.device {
            load = load.device(device.parse().map_err(LapidaryError::argument::<String>)?);
        }
        if let Some(positions) = self.context {
            load = load.context(positions);
        }
        if let Some(n) = self.sequences {
            load = load.sequences(n);
        }
        if let Some(bytes) = self.kv_memory {
            load = load.kv_memory(bytes);
        }
        if let Some(kv) = self.kv_type {
            load = load.kv_type(kv.into());
        }
        if self.exact {
            load = load.precision(lapidary::Precision::Exact);
        }
        if let Some(n) = self.threads {
            load = load.threads(n as usize);
        }
        if let Some(tokens) = self.chunk {
            load = load.chunk(tokens);
        }
        if self.text_only {
            load = load.text_only();
        }
        if let Some(draft) = self.draft {
            load = load.draft(match draft {
                Draft::Auto => lapidary::Draft::Auto,
                Draft::Off => lapidary::Draft::Off,
                Draft::Lookup => lapidary::Draft::Lookup,
                Draft::Model => lapidary::Draft::Model,
            });
        }
        if let Some(folder) = &self.pack_cache {
            load = load.pack_cache((folder != "off").then(|| folder.into()));
        }
        if let Some(n) = self.queue {
            load = load.queue(n as usize);
        }
        if let Some(n) = self.events {
            load = load.events(n as usize);
        }
        if let Some(ms) = self.patience_ms {
            load = load.patience(Duration::from_millis(ms));
        }
        Ok(load)
    }
}

impl From<KvType> for lapidary::KvType {
    fn from(kv: KvType) -> Self {
        match kv {
            KvType::F32 => lapidary::KvType::F32,
            KvType::Bf16 => lapidary::KvType::Bf16,
            KvType::Int8 => lapidary::KvType::Int8,
        }
    }
}

impl Plan {
    pub(crate) fn of(plan: &lapidary::Plan) -> Self {
        Plan {
            model: plan.model.clone(),
            backend: plan.backend.to_string(),
            device: (&plan.device).into(),
            passed_over: plan.passed_over.clone(),
            context: plan.context,
            model_context: plan.model_context,
            sequences: plan.sequences,
            positions: plan.positions,
            kv_type: match plan.kv_type {
                lapidary::KvType::F32 => KvType::F32,
                lapidary::KvType::Bf16 => KvType::Bf16,
                lapidary::KvType::Int8 => KvType::Int8,
            },
            exact: plan.precision == lapidary::Precision::Exact,
            weight_bytes: plan.memory.weights,
            kv_bytes: plan.memory.kv,
            activation_bytes: plan.memory.activations,
            total_bytes: plan.memory.total(),
            fits: plan.fits(),
            shortage: plan.shortage(),
            text: plan.to_string(),
        }
    }
}

/// A model on its way to a device.
///
/// Dropping it cancels, unless the engine was taken.
#[derive(uniffi::Object)]
pub struct Loading {
    task: Arc<Task<LoadProgress, Arc<Engine>>>,
    cancelled: Arc<AtomicBool>,
}

impl Loading {
    pub(crate) fn start(model: lapidary::Model, options: LoadOptions) -> Self {
        let cancelled = Arc::<AtomicBool>::default();
        let is_cancelled = {
            let cancelled = cancelled.clone();
            move || cancelled.load(Ordering::SeqCst)
        };
        let task = Task::start(move |task: &Arc<Task<LoadProgress, Arc<Engine>>>| {
            let told = task.clone();
            let load = options.load()?.on_progress(move |done, total| {
                let fraction = if total == 0 { 1.0 } else { done as f64 / total as f64 };
                told.tell(LoadProgress { done, total, fraction });
            });
            let engine = Arc::new(Engine::new(model.load(load)?));
            // Whoever cancelled has been told so; the engine goes as it came.
            if is_cancelled() { Err(LapidaryError::cancelled()) } else { Ok(engine) }
        });
        Loading { task, cancelled }
    }
}

#[uniffi::export]
impl Loading {
    /// How far it is: the newest that was not told yet. `None` when loading has ended, well or not.
    pub async fn next(&self) -> Option<LoadProgress> {
        self.task.next().await
    }

    /// Waits for the engine.
    pub async fn engine(&self) -> Result<Arc<Engine>> {
        self.task.result().await
    }

    /// Gives it up. What is loaded by then is let go.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.task.end(Err(LapidaryError::cancelled()));
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.cancel();
    }
}
