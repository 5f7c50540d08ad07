//! Models that are open, and engines.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use lapidary::runner::Rows;
use lapidary::serde_json::{Value, json};
use lapidary::{ErrorCode, Request};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::answer::Answer;
use crate::conversation::Conversation;
use crate::error::{Failure, Result};
use crate::media::{self, Media};
use crate::options::{Loading, Options};
use crate::wait::{Task, aside, wait, wait_telling};

/// A model that is open; nothing of it is on a device.
#[pyclass(frozen, module = "lapidary._native")]
pub(crate) struct Model {
    model: lapidary::Model,
    /// As it was opened.
    loading: Loading,
    process: u32,
}

#[pymethods]
impl Model {
    /// Opens a path, a name, or `pebble`.
    #[staticmethod]
    fn open(py: Python<'_>, source: PathBuf, options: &str) -> PyResult<Self> {
        let loading = Loading::read(options)?;
        let open = loading.open();
        // Threads do not come along into a process that is forked, those of a pool neither.
        let process = first_process()?;
        let model = wait(py, move || Ok(open.open(source)?))?;
        Ok(Model { model, loading, process })
    }

    fn info(&self) -> String {
        info(&self.model).to_string()
    }

    /// What loading would take, with these options or those that it was opened with.
    #[pyo3(signature = (options=None))]
    fn plan(&self, py: Python<'_>, options: Option<&str>) -> PyResult<String> {
        let loading = options.map(Loading::read).transpose()?;
        let load = loading.as_ref().unwrap_or(&self.loading).load()?;
        let model = self.model.clone();
        wait(py, move || Ok(plan(&load.plan(&model)?).to_string()))
    }

    /// Puts it on a device; `progress` is called with the bytes that are ready, and all.
    #[pyo3(signature = (progress=None))]
    fn load(&self, py: Python<'_>, progress: Option<Bound<'_, PyAny>>) -> PyResult<Engine> {
        same_process(self.process)?;
        let load = self.loading.load()?;
        let model = self.model.clone();
        let work = move |task: &Arc<Task<(u64, u64), Engine>>| {
            let told = task.clone();
            let load = load.on_progress(move |done, all| told.tell((done, all)));
            let engine = model.load(load)?;
            Ok(Engine(Arc::new(Home::new(model.clone(), engine))))
        };
        wait_telling(py, work, |(done, all): (u64, u64)| match &progress {
            Some(progress) => progress.call1((done, all)).map(drop),
            None => Ok(()),
        })
    }
}

/// A model on a device.
#[pyclass(frozen, module = "lapidary._native")]
pub(crate) struct Engine(Arc<Home>);

/// What an engine, its conversations and its answers hold together.
pub(crate) struct Home {
    /// Nothing once it was closed.
    loaded: Mutex<Option<(lapidary::Model, lapidary::Engine)>>,
    process: u32,
}

impl Home {
    fn new(model: lapidary::Model, engine: lapidary::Engine) -> Self {
        Home { loaded: Mutex::new(Some((model, engine))), process: std::process::id() }
    }

    /// The model and its engine, unless they are gone.
    pub(crate) fn loaded(&self) -> Result<(lapidary::Model, lapidary::Engine)> {
        same_process(self.process)?;
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.clone().ok_or_else(|| lapidary::Error::Unloaded.into())
    }
}

impl Drop for Home {
    /// The engine's thread finishes its step before it ends; whoever drops, perhaps a garbage collector,
    /// does not wait for that.
    fn drop(&mut self) {
        let Some(loaded) = self.loaded.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        else {
            return;
        };
        if same_process(self.process).is_err() {
            // There is no thread here that would end.
            std::mem::forget(loaded);
            return;
        }
        // Where there can't be a thread, it ends here.
        let _ =
            std::thread::Builder::new().name("lapidary-python".into()).spawn(move || drop(loaded));
    }
}

/// The process that first opened a model.
static PROCESS: std::sync::OnceLock<u32> = std::sync::OnceLock::new();

fn first_process() -> Result<u32> {
    let first = *PROCESS.get_or_init(std::process::id);
    same_process(first)?;
    Ok(first)
}

fn same_process(process: u32) -> Result<()> {
    if process == std::process::id() {
        return Ok(());
    }
    let what = "this process was forked from one that uses lapidary, whose threads are not here; start \
                it with multiprocessing's `spawn` instead of `fork`, and open the model in it";
    Err(Failure::new(ErrorCode::Unsupported, what))
}

#[pymethods]
impl Engine {
    /// Frees the device's memory and ends all answers.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let home = self.0.clone();
        wait(py, move || {
            let loaded = home.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((_, engine)) = loaded {
                same_process(home.process)?;
                engine.unload();
            }
            Ok(())
        })
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.0.loaded().is_err()
    }

    fn info(&self) -> PyResult<String> {
        let (model, engine) = self.0.loaded()?;
        let mut info = info(&model);
        info["device"] = engine.describe().into();
        info["load_seconds"] = engine.load_time().as_secs_f64().into();
        Ok(info.to_string())
    }

    /// What was decided at loading; with options, what loading with them would take.
    #[pyo3(signature = (options=None))]
    fn plan(&self, py: Python<'_>, options: Option<&str>) -> PyResult<String> {
        let (model, engine) = self.0.loaded()?;
        match options {
            None => Ok(plan(engine.plan()).to_string()),
            Some(options) => {
                let load = Loading::read(options)?.load()?;
                wait(py, move || Ok(plan(&load.plan(&model)?).to_string()))
            }
        }
    }

    fn metrics(&self) -> PyResult<String> {
        let m = self.0.loaded()?.1.metrics();
        let metrics = json!({
            "open": m.open,
            "running": m.running,
            "waiting": m.waiting,
            "pages_in_use": m.pages_in_use,
            "pages": m.pages,
            "preempted": m.preempted,
            "finished": m.finished,
            "cancelled": m.cancelled,
            "failed": m.failed,
            "prompt_tokens": m.prompt_tokens,
            "reused_tokens": m.reused_tokens,
            "new_tokens": m.new_tokens,
        });
        Ok(metrics.to_string())
    }

    /// Answers messages.
    fn chat(
        &self,
        py: Python<'_>,
        messages: String,
        media: Vec<PyRef<'_, Media>>,
        options: &str,
    ) -> PyResult<Answer> {
        let options = Options::read(options)?;
        let media = media::given(&media);
        let home = self.0.clone();
        let ask = move || {
            let messages = media::messages(&messages, &media, &options)?;
            Answer::ask(home, options.refine(Request::chat(messages))?)
        };
        wait(py, ask)
    }

    /// Continues text after media.
    fn complete(
        &self,
        py: Python<'_>,
        text: String,
        media: Vec<PyRef<'_, Media>>,
        options: &str,
    ) -> PyResult<Answer> {
        let options = Options::read(options)?;
        let media = media::given(&media).into_iter().map(|media| options.shown(media)).collect();
        let request = options.refine(Request::text_after(media, text))?;
        let home = self.0.clone();
        wait(py, move || Answer::ask(home, request))
    }

    /// Continues token ids.
    fn continue_ids(&self, py: Python<'_>, ids: Vec<u32>, options: &str) -> PyResult<Answer> {
        let request = Options::read(options)?.refine(Request::ids(ids, vec![]))?;
        let home = self.0.clone();
        wait(py, move || Answer::ask(home, request))
    }

    /// Begins to embed texts, so many at once.
    fn embed(&self, py: Python<'_>, text: String) -> PyResult<Answer> {
        let home = self.0.clone();
        wait(py, move || Answer::ask(home, Request::text(text).embedding()))
    }

    /// Tokens of a prompt that is not asked.
    fn count_tokens(
        &self,
        py: Python<'_>,
        messages: String,
        media: Vec<PyRef<'_, Media>>,
        options: &str,
    ) -> PyResult<usize> {
        let options = Options::read(options)?;
        let media = media::given(&media);
        let (model, _) = self.0.loaded()?;
        wait(py, move || {
            let messages = media::messages(&messages, &media, &options)?;
            Ok(model.count_tokens(&options.refine(Request::chat(messages))?)?)
        })
    }

    /// The text of a prompt that is not asked, and its tokens.
    fn prompt(&self, py: Python<'_>, messages: String, options: &str) -> PyResult<Vec<u32>> {
        let options = Options::read(options)?;
        let (model, _) = self.0.loaded()?;
        aside(py, || {
            let messages = media::messages(&messages, &[], &options)?;
            Ok(options.refine(Request::chat(messages))?.prompt(&model)?.tokens)
        })
    }

    /// Token ids of text, after the token that begins a sequence if the model wants it and `begin`.
    #[pyo3(signature = (text, begin=true))]
    fn tokenize(&self, py: Python<'_>, text: &str, begin: bool) -> PyResult<Vec<u32>> {
        let (model, _) = self.0.loaded()?;
        aside(py, || {
            let mut ids = model.tokenise(text)?;
            let n_before = if begin { 0 } else { model.tokenise("")?.len() };
            ids.drain(..n_before.min(ids.len()));
            Ok(ids)
        })
    }

    /// The text of token ids.
    fn detokenize(&self, py: Python<'_>, ids: Vec<u32>, keep_special: bool) -> PyResult<String> {
        let (model, _) = self.0.loaded()?;
        aside(py, || Ok(model.tokenizer()?.decode(&ids, keep_special)))
    }

    /// Logits after each token, or after the last, as floats of 32 bits in this machine's order; and how
    /// many there are in a row.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<u32>,
        all: bool,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let (model, engine) = self.0.loaded()?;
        let bytes = wait(py, move || {
            let rows = if all { Rows::All } else { Rows::Last };
            let prompt = Request::ids(ids, vec![]).prompt(&model)?;
            let computed = engine.with_runner(move |runner| {
                let mut bytes = vec![];
                let mut keep = |_: usize, row: &[f32]| {
                    bytes.extend(row.iter().flat_map(|x| x.to_ne_bytes()));
                };
                runner
                    .logits_with(&prompt.tokens, &prompt.soft, rows, None, &mut keep)
                    .map(|()| bytes)
            })?;
            Ok(computed.map_err(lapidary::Error::from)?)
        })?;
        let width = self.0.loaded()?.0.metadata().vocab_size as usize;
        Ok((PyBytes::new(py, &bytes), width))
    }

    /// Begins a conversation.
    #[pyo3(signature = (system=None))]
    fn conversation(&self, system: Option<String>) -> PyResult<Conversation> {
        Ok(Conversation::new(self.0.clone(), system)?)
    }

    /// Forgets all cached tokens that no answer uses.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        let (_, engine) = self.0.loaded()?;
        wait(py, move || Ok(engine.forget()?))
    }
}

/// Facts about a model.
fn info(model: &lapidary::Model) -> Value {
    let metadata = model.metadata();
    let format = metadata.answer.as_ref();
    let modalities = model.modalities();
    let notices: Vec<String> = model.notices().into_iter().map(|notice| notice.text).collect();
    json!({
        "name": model.name(),
        "modalities": modalities.iter().map(|m| m.name()).collect::<Vec<_>>(),
        "context": metadata.max_context_len,
        "parameters": model.program().n_params(),
        "vocab_size": metadata.vocab_size,
        "has_drafter": model.has_drafter(),
        "can_think": format.is_some_and(|f| f.thinking.is_some()),
        "can_call_tools": format.is_some_and(|f| f.calls.is_some()),
        "quantised_weights": model.n_quantised(),
        "notices": notices,
    })
}

/// What was or would be decided.
fn plan(plan: &lapidary::Plan) -> Value {
    json!({
        "model": plan.model,
        "backend": plan.backend,
        "device": plan.device.id.to_string(),
        "device_name": plan.device.name,
        "passed_over": plan.passed_over,
        "context": plan.context,
        "model_context": plan.model_context,
        "sequences": plan.sequences,
        "positions": plan.positions,
        "kv": plan.kv_type.name(),
        "precision": match plan.precision {
            lapidary::Precision::Exact => "exact",
            lapidary::Precision::Fast => "fast",
        },
        "weight_bytes": plan.memory.weights,
        "kv_bytes": plan.memory.kv,
        "activation_bytes": plan.memory.activations,
        "total_bytes": plan.memory.total(),
        "fits": plan.fits(),
        "shortage": plan.shortage(),
        "text": plan.to_string(),
    })
}
