//! What is decided before a model is on a device, and what that would take.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapidary_backend::{
    Backend, Chosen, Device, DeviceId, DeviceInfo, KvType, LoadOptions, MemoryPlan, PAGE,
    Precision, Registry, Wishes, fit, pages_for,
};
use lapidary_program::{Program, method};
use lapidary_runner::{Drafting, Lookup, Runner, RunnerOptions};

use crate::cache;
use crate::error::{Error, Result};
use crate::media::Towers;
use crate::model::Model;
#[cfg(feature = "hub")]
use crate::names::platform_backend;
use crate::plan::Plan;

/// What a context is unless told, where the model has more.
pub const DEFAULT_CONTEXT: u32 = 8192;
/// Sequences that are answered at once, unless told.
const DEFAULT_SEQUENCES: u32 = 4;
/// Requests that may wait for a sequence, unless told.
const DEFAULT_QUEUE: usize = 64;
/// Events of one answer that may wait for their reader, unless told.
const DEFAULT_EVENTS: usize = 1024;
/// How long the engine waits for one reader in all, unless told.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(5);

/// Told of a plan before it is carried out.
type OnPlan = Arc<dyn Fn(&Plan) + Send + Sync>;

/// How a model is loaded. Every choice has a good default.
///
/// ```no_run
/// # let model = lapidary::Model::pebble()?;
/// let load = lapidary::Load::default().backend("cpu").context(4096).sequences(8);
/// println!("{}", load.plan(&model)?);
/// let engine = model.load(load)?;
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone)]
pub struct Load {
    backend: Option<String>,
    device: DeviceChoice,
    context: Option<u32>,
    sequences: u32,
    kv_memory: Option<u64>,
    kv: Option<KvType>,
    precision: Precision,
    threads: Option<usize>,
    chunk: Option<u32>,
    towers: Option<Towers>,
    draft: Draft,
    packs: Option<PathBuf>,
    progress: Option<Arc<ProgressFn>>,
    planned: Option<OnPlan>,
    pub(crate) queue: usize,
    pub(crate) events: usize,
    pub(crate) patience: Duration,
}

/// Is told bytes of weights that are packed, and of all.
type ProgressFn = dyn Fn(u64, u64) + Send + Sync;

/// What guesses the next tokens of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// The model's drafter, if it has one.
    #[default]
    Auto,
    /// Nothing: a call gives one token.
    Off,
    /// The text itself: names, code and quotations come again.
    Lookup,
    /// The model's drafter; loading fails if it has none.
    Model,
}

/// Which device is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best.
    #[default]
    Any,
    /// The backend's device of this number.
    Index(u32),
    /// This one.
    Id(DeviceId),
}

impl FromStr for DeviceChoice {
    type Err = String;

    /// `1`, or `vulkan:1`.
    fn from_str(s: &str) -> std::result::Result<Self, String> {
        match s.parse() {
            Ok(index) => Ok(DeviceChoice::Index(index)),
            Err(_) => {
                let wrong = |_| format!("`{s}` is not a device; write `1` or `vulkan:1`");
                Ok(DeviceChoice::Id(s.parse().map_err(wrong)?))
            }
        }
    }
}

impl Default for Load {
    fn default() -> Self {
        Load {
            backend: None,
            device: DeviceChoice::Any,
            context: None,
            sequences: DEFAULT_SEQUENCES,
            kv_memory: None,
            kv: None,
            precision: Precision::Fast,
            threads: None,
            chunk: None,
            towers: None,
            draft: Draft::Auto,
            packs: cache::packs(cache::root()),
            progress: None,
            planned: None,
            queue: DEFAULT_QUEUE,
            events: DEFAULT_EVENTS,
            patience: DEFAULT_PATIENCE,
        }
    }
}

impl Load {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses the backend of this name, and no other if that can't be used; `auto` for the one that
    /// this kind of system prefers, else the best.
    pub fn backend(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.backend = (name != "auto").then_some(name);
        self
    }

    /// Uses this device.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.device = device;
        self
    }

    /// Positions of one sequence, prompt and answer together; by default the model's own, but at
    /// most [`DEFAULT_CONTEXT`].
    pub fn context(mut self, positions: u32) -> Self {
        self.context = Some(positions);
        self
    }

    /// Sequences that are answered at once.
    pub fn sequences(mut self, n: u32) -> Self {
        self.sequences = n;
        self
    }

    /// The most bytes that keys and values of past tokens may take. If that is not enough for all
    /// sequences at their full length, long ones wait for each other.
    pub fn kv_memory(mut self, bytes: u64) -> Self {
        self.kv_memory = Some(bytes);
        self
    }

    /// How keys and values are stored; by default as suits the precision.
    pub fn kv_type(mut self, kv: KvType) -> Self {
        self.kv = Some(kv);
        self
    }

    /// How activations meet quantised weights.
    pub fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }

    /// Worker threads; by default what the machine allows.
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = Some(n);
        self
    }

    /// Tokens of one sequence in one call; by default what suits the device.
    pub fn chunk(mut self, tokens: u32) -> Self {
        self.chunk = Some(tokens);
        self
    }

    /// Loads the towers for these media and no others; by default all that the model has.
    pub fn towers(mut self, towers: Towers) -> Self {
        self.towers = Some(towers);
        self
    }

    /// Loads no tower: nothing can be shown or played, and their weights take no memory.
    pub fn text_only(self) -> Self {
        self.towers(Towers::none())
    }

    /// What guesses the next tokens of an answer, so that one call may give several. The answer is the
    /// same with and without. A drafter that does not guess is not loaded.
    pub fn draft(mut self, draft: Draft) -> Self {
        self.draft = draft;
        self
    }

    /// Keeps packed weights in this folder, so that a second start is quick; `None` for nowhere.
    pub fn pack_cache(mut self, folder: Option<PathBuf>) -> Self {
        self.packs = folder;
        self
    }

    /// Is told how many bytes of weights are packed, and how many there are.
    pub fn on_progress(mut self, progress: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Is told the plan before anything is packed, whether it fits or not.
    pub fn on_plan(mut self, planned: impl Fn(&Plan) + Send + Sync + 'static) -> Self {
        self.planned = Some(Arc::new(planned));
        self
    }

    /// Requests that may wait while as many as [`Self::sequences`] are answered. More are refused
    /// with [`Error::QueueFull`].
    pub fn queue(mut self, requests: usize) -> Self {
        self.queue = requests;
        self
    }

    /// Events of one answer that may wait for their reader.
    pub fn events(mut self, n: usize) -> Self {
        self.events = n.max(1);
        self
    }

    /// How long the engine waits, in all, for the reader of one answer whose events fill up. After
    /// that the answer is cancelled with [`Error::SlowReader`].
    pub fn patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// What loading would take, without taking it.
    pub fn plan(&self, model: &Model) -> Result<Plan> {
        Ok(self.prepare(model)?.plan)
    }

    /// Chooses a device and plans.
    fn prepare(&self, model: &Model) -> Result<Prepared> {
        let program = model.program();
        let context = self.context_of(program)?;
        if self.sequences == 0 {
            return Err(Error::argument("0 sequences can't be answered; ask for at least 1"));
        }
        let registry = lapidary_backends::all();
        let Chosen { backend, device, passed_over } = self.choose(&registry)?;
        let methods = self.methods(program);
        for method in &methods {
            let missing = device.missing_ops(program, method);
            if !missing.is_empty() {
                let (backend, method) = (backend.name(), method.clone());
                let ops = missing.join(", ");
                return Err(lapidary_backend::Error::MissingOps { backend, method, ops }.into());
            }
        }
        let towers = self.towers.unwrap_or_else(Towers::any);
        let wishes = Wishes {
            max_context: context,
            n_sequences: self.sequences,
            chunk: self.chunk,
            block: towers.block,
        };
        let limits = device.limits(program, &wishes);
        let mut options = LoadOptions {
            max_context: context,
            n_sequences: self.sequences,
            limits,
            pages: limits.pages(program, context, self.sequences),
            threads: self.threads,
            precision: self.precision,
            max_patches: towers.patches,
            max_frames: towers.frames,
            methods,
            kv: self.kv,
            pack_cache: self.packs.clone(),
        };
        let memory = self.fit_pool(program, device.as_ref(), &mut options)?;
        let shortage = fit(&memory, program, device.info(), &options).err();
        let plan = Plan {
            model: model.name().to_string(),
            backend: backend.name(),
            device: device.info().clone(),
            passed_over,
            context,
            model_context: program.metadata().max_context_len,
            sequences: self.sequences,
            positions: positions(program, &options),
            limits,
            precision: self.precision,
            kv_type: options.kv_type(),
            methods: options.methods.clone(),
            memory,
            shortage: shortage.map(Arc::new),
        };
        Ok(Prepared { device, options, plan })
    }

    fn context_of(&self, program: &Program) -> Result<u32> {
        let own = program.metadata().max_context_len;
        let context = self.context.unwrap_or(own.min(DEFAULT_CONTEXT));
        if context == 0 || context > own {
            let what = format!("a context of {context} positions; this model has {own}");
            return Err(Error::argument(what));
        }
        Ok(context)
    }

    fn choose<'a>(&self, registry: &'a Registry) -> Result<Chosen<'a>> {
        Ok(match (&self.device, self.backend.as_deref()) {
            (DeviceChoice::Id(id), Some(name)) if id.backend != name => {
                let what = format!("the device {id} is not one of the backend `{name}`");
                return Err(Error::argument(what));
            }
            (DeviceChoice::Id(id), _) => registry.device(id)?,
            (DeviceChoice::Index(index), Some(name)) => registry.named(name, Some(*index))?,
            (DeviceChoice::Index(index), None) => registry.auto(Some(*index))?,
            (DeviceChoice::Any, Some(name)) => registry.named(name, None)?,
            (DeviceChoice::Any, None) => match platform_backend() {
                Some(name) => registry.named(&name, None)?,
                None => registry.auto(None)?,
            },
        })
    }

    /// The methods that will be called: towers only where something is shown or played.
    fn methods(&self, program: &Program) -> Vec<String> {
        let towers = self.towers.unwrap_or_else(Towers::any);
        let wanted = |name: &&String| match name.as_str() {
            method::VISION => towers.patches > 0,
            method::AUDIO => towers.frames > 0,
            method::DRAFT => matches!(self.draft, Draft::Auto | Draft::Model),
            _ => true,
        };
        program.methods().keys().filter(wanted).cloned().collect()
    }

    /// Lowers the pool of pages to what the device can address, to the budget, or to what the device
    /// has beside the weights, but never below one whole sequence.
    fn fit_pool(
        &self,
        program: &Program,
        device: &dyn Device,
        options: &mut LoadOptions,
    ) -> Result<MemoryPlan> {
        if let Some(most) = device.max_pages(program, options) {
            let pages = |n: u32| options.limits.pages(program, options.max_context, n);
            let fits = |n: &u32| pages(*n).iter().zip(&most).all(|(pages, most)| pages <= most);
            // Where not even one sequence fits, the plan says so.
            let n = (1..=options.n_sequences).rev().find(fits).unwrap_or(1);
            options.pages = pages(n);
        }
        let memory = device.plan(program, options)?;
        let fixed = memory.weights.saturating_add(memory.activations);
        let free = device.info().available_bytes.map(|have| have.saturating_sub(fixed));
        let Some(room) = [self.kv_memory, free].into_iter().flatten().min() else {
            return Ok(memory);
        };
        if memory.kv <= room {
            return Ok(memory);
        }
        // Bytes grow with pages, whatever a backend's element is.
        let whole = MemoryPlan::kv_bytes(program, options, 4).max(1);
        let scale = memory.kv as f64 / whole as f64;
        let mut pages = options.pages.clone();
        for n in (1..=options.n_sequences).rev() {
            pages = options.limits.pages(program, options.max_context, n);
            let fewer = LoadOptions { pages: pages.clone(), ..options.clone() };
            if MemoryPlan::kv_bytes(program, &fewer, 4) as f64 * scale <= room as f64 {
                break;
            }
        }
        options.pages = pages;
        let memory = device.plan(program, options)?;
        if let Some(budget) = self.kv_memory.filter(|budget| memory.kv > *budget) {
            return Err(Error::argument(format!(
                "one sequence of {} positions needs {} bytes of KV memory and {budget} are allowed; \
                 ask for a shorter context",
                options.max_context, memory.kv
            )));
        }
        Ok(memory)
    }
}

/// The backend that this kind of system prefers: without the table of models, none.
#[cfg(not(feature = "hub"))]
fn platform_backend() -> Option<String> {
    None
}

/// Tokens of the group without a window that the pool holds, or of the longest window's.
fn positions(program: &Program, options: &LoadOptions) -> u64 {
    let groups = program.kv_groups();
    let full = groups.iter().position(|g| g.window.is_none());
    let pages = full.map_or(0, |g| options.pages_of(g));
    let all = pages_for(options.max_context as usize) * options.n_sequences as usize;
    (if full.is_some() { pages } else { all } * PAGE) as u64
}

/// A device that was chosen, and what goes on it.
struct Prepared {
    device: Box<dyn Device>,
    options: LoadOptions,
    plan: Plan,
}

/// A backend's engine with a model on it, for measurements: whoever wants answers takes
/// [`Model::load`].
pub struct Loaded {
    /// The engine.
    pub engine: Box<dyn lapidary_backend::Engine>,
    /// What it takes.
    pub plan: Plan,
    /// How long that took.
    pub took: Duration,
}

impl Model {
    /// Puts the model on a device, with a thread that answers. Refuses what does not fit.
    pub fn load(&self, load: Load) -> Result<crate::Engine> {
        let runner = self.load_runner(&load)?;
        crate::Engine::start(self.clone(), runner, &load)
    }

    /// Starts the thread that answers, of a runner that [`Self::load_runner`] or the caller made.
    pub fn start(&self, loaded: LoadedRunner, load: &Load) -> Result<crate::Engine> {
        crate::Engine::start(self.clone(), loaded, load)
    }

    /// Puts the model on a device, for whoever calls the backend's engine itself.
    pub fn load_engine(&self, load: &Load) -> Result<Loaded> {
        let start = Instant::now();
        let Prepared { device, options, plan } = load.prepare(self)?;
        if let Some(planned) = &load.planned {
            planned(&plan);
        }
        if let Some(shortage) = &plan.shortage {
            return Err(Error::Backend(shortage.clone()));
        }
        let progress = load.progress.clone();
        let engine = device.load(self.program(), &options, &mut |done, all| {
            if let Some(progress) = &progress {
                progress(done, all);
            }
        })?;
        Ok(Loaded { engine, plan, took: start.elapsed() })
    }

    /// Whether the model has a drafter, which guesses the next tokens.
    pub fn has_drafter(&self) -> bool {
        self.program().methods().contains_key(method::DRAFT)
    }

    /// Puts the model on a device, for whoever steps a runner on a thread of their own.
    pub fn load_runner(&self, load: &Load) -> Result<LoadedRunner> {
        let Loaded { engine, plan, took } = self.load_engine(load)?;
        let drafting = match load.draft {
            Draft::Off => Drafting::Off,
            Draft::Lookup => Drafting::Text(Arc::new(Lookup)),
            Draft::Auto if !self.has_drafter() => Drafting::Off,
            Draft::Auto | Draft::Model => Drafting::Model,
        };
        let options = RunnerOptions { drafting, ..RunnerOptions::default() };
        let mut runner = Runner::with_options(engine, self.prompts().clone(), options)?;
        runner.set_load_seconds(took.as_secs_f64());
        Ok(LoadedRunner { runner, plan, took })
    }
}

/// A runner with a model in it.
pub struct LoadedRunner {
    /// The runner.
    pub runner: Runner,
    /// What it takes.
    pub plan: Plan,
    /// How long loading took.
    pub took: Duration,
}

/// The backends that a name stands for: `auto` for all that are worth it here. Those that `auto`
/// passes over are given to `left_out` with the reason.
pub fn backends(name: &str, left_out: &mut dyn FnMut(&str, &str)) -> Result<Vec<&'static str>> {
    let registry = lapidary_backends::all();
    if name != "auto" {
        return Ok(vec![registry.backend(name)?.name()]);
    }
    let is_worth_it = |backend: &&dyn Backend| {
        let device = backend.devices().ok().and_then(|devices| devices.into_iter().next());
        let why = device.and_then(|device| backend.passes_over(&device));
        if let Some(why) = &why {
            left_out(backend.name(), why);
        }
        why.is_none()
    };
    Ok(registry.iter().filter(is_worth_it).map(Backend::name).collect())
}

/// The names of the backends of this build, best first. No device is asked.
pub fn backend_names() -> Vec<&'static str> {
    lapidary_backends::all().iter().map(Backend::name).collect()
}

/// A backend of this build, and what it finds on this machine.
#[derive(Clone, Debug)]
pub struct BackendInfo {
    /// Its name.
    pub name: &'static str,
    /// Its devices, each with the reason why `auto` passes it over, if it does; or why there are
    /// none.
    pub devices: std::result::Result<Vec<(DeviceInfo, Option<String>)>, String>,
    /// Whether `auto` takes it.
    pub is_auto: bool,
}

/// All backends of this build, best first.
pub fn devices() -> Vec<BackendInfo> {
    let registry = lapidary_backends::all();
    let auto = registry.auto(None).map(|chosen| chosen.backend.name()).ok();
    let info = |backend: &dyn Backend| {
        let with_reason = |device: DeviceInfo| {
            let why = backend.passes_over(&device);
            (device, why)
        };
        BackendInfo {
            name: backend.name(),
            devices: match backend.devices() {
                Ok(devices) => Ok(devices.into_iter().map(with_reason).collect()),
                Err(e) => Err(e.to_string()),
            },
            is_auto: auto == Some(backend.name()),
        }
    };
    registry.iter().map(info).collect()
}

impl fmt::Debug for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load")
            .field("backend", &self.backend)
            .field("device", &self.device)
            .field("context", &self.context)
            .field("sequences", &self.sequences)
            .field("kv_memory", &self.kv_memory)
            .field("kv", &self.kv)
            .field("precision", &self.precision)
            .field("threads", &self.threads)
            .field("chunk", &self.chunk)
            .field("towers", &self.towers)
            .finish_non_exhaustive()
    }
}
