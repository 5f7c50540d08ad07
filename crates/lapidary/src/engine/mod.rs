//! The handle of a model on a device, and the thread that answers.

mod answer;
mod channel;
mod embed;
mod inbox;
mod metrics;
mod thread;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use lapidary_program::Metadata;
use lapidary_runner::{CancelToken, Runner};

pub use answer::Answer;
pub(crate) use answer::OnEnd;
pub use embed::Embedding;
pub use metrics::Metrics;

use crate::conversation::Conversation;
use crate::error::{Error, Result};
use crate::load::{Load, LoadedRunner};
use crate::model::Model;
use crate::plan::Plan;
use crate::request::Request;
use inbox::{Inbox, Tells, Wanted};
use metrics::Counters;

/// A model on a device. A clone is another handle of the same; all may be used from any thread.
///
/// A thread of its own computes. It ends, and the device's memory is free, when the last handle,
/// conversation and answer is dropped, or at [`Engine::unload`].
#[derive(Clone)]
pub struct Engine(Arc<Shared>);

struct Shared {
    model: Model,
    plan: Plan,
    describe: String,
    load_time: Duration,
    max_context: usize,
    inbox: Arc<Inbox>,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
    events: usize,
    patience: Duration,
}

impl Engine {
    /// Starts the thread of a runner.
    pub(crate) fn start(model: Model, loaded: LoadedRunner, load: &Load) -> Result<Self> {
        let LoadedRunner { runner, plan, took } = loaded;
        let inbox = Arc::new(Inbox::new(load.queue.saturating_add(plan.sequences as usize)));
        let counters = Arc::<Counters>::default();
        counters.note(&runner);
        let (describe, max_context) = (runner.describe(), runner.max_context());
        let thread = thread::spawn(runner, inbox.clone(), counters.clone())
            .map_err(|e| Error::io("can't start the engine's thread", e))?;
        Ok(Engine(Arc::new(Shared {
            model,
            plan,
            describe,
            load_time: took,
            max_context,
            inbox,
            counters,
            thread: Mutex::new(Some(thread)),
            events: load.events,
            patience: load.patience,
        })))
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.0.model
    }

    /// Facts about the model.
    pub fn metadata(&self) -> &Metadata {
        self.0.model.metadata()
    }

    /// What was decided at loading, and what it takes.
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// One line about backend and device.
    pub fn describe(&self) -> &str {
        &self.0.describe
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.0.load_time
    }

    /// Tokens that prompt and answer may fill together.
    pub fn max_context(&self) -> usize {
        self.0.max_context
    }

    /// What it does and has done.
    pub fn metrics(&self) -> Metrics {
        self.0.counters.snapshot(self.0.inbox.n_open())
    }

    /// Begins a conversation.
    pub fn conversation(&self) -> Conversation {
        Conversation::new(self.clone())
    }

    /// Asks for an answer. The prompt is made on this thread: templates, tokens, and whatever has to
    /// be decoded. Then this returns, and events come as the answer does.
    pub fn answer(&self, request: Request) -> Result<Answer> {
        self.answer_with(request, None)
    }

    /// The same, telling `on_end` what the answer was.
    pub(crate) fn answer_with(&self, request: Request, on_end: Option<OnEnd>) -> Result<Answer> {
        // No prompt is made for a queue that is full.
        self.0.inbox.check()?;
        let model = self.model();
        let prompt = request.prompt(model)?;
        let parser = match request.is_parsed {
            true => Some(model.prompts().answer_parser(&prompt, request.keep_special)?),
            false => None,
        };
        let constraint = match &request.grammar {
            Some(grammar) => {
                model.tokenizer()?;
                let may_think = request.may_think();
                Some(model.prompts().constraint(grammar, &prompt, may_think)?)
            }
            None => None,
        };
        let thinking = match (request.thinking_budget, &parser) {
            (Some(n), Some(_)) => model.prompts().thinking_close().map(|close| (n, close)),
            // Whoever may think as long as it likes still leaves room for an answer.
            (None, Some(_)) if request.may_think() => {
                model.prompts().thinking_close().map(|close| (usize::MAX, close))
            }
            _ => None,
        };
        let thinking =
            thinking.map(|(tokens, close)| lapidary_runner::ThinkingLimit { tokens, close });
        let tells = Tells {
            tokens: request.tokens || request.logprobs.is_some(),
            progress: request.progress,
        };
        let asked = lapidary_runner::Request {
            params: request.sampling.params(model.metadata()),
            max_new: request.max_tokens,
            stop: request.stop,
            stop_ids: request.stop_ids,
            ignore_eos: request.ignore_eos,
            keep_special: request.keep_special,
            parser,
            scope: request.scope,
            constraint: constraint.map(|c| Box::new(c) as _),
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            embed: request.embed,
            thinking,
            deadline: request.deadline,
            ..lapidary_runner::Request::new(prompt, lapidary_runner::SamplingParams::default())
        };
        // Whoever is wrong need not wait to hear it, and in a conversation nothing was said.
        asked.check(self.0.max_context, model.metadata().vocab_size)?;
        let cancel = CancelToken::new();
        let (sender, receiver) = channel::channel(self.0.events, self.0.patience, cancel.clone());
        self.0.inbox.ask(cancel.clone(), |number, cancel| Wanted {
            number,
            request: asked,
            cancel,
            sender,
            tells,
            call_prefix: request.call_prefix,
        })?;
        Ok(Answer::new(self.clone(), receiver, cancel, on_end))
    }

    /// Runs something with the runner on the engine's thread, when no answer is under way; later
    /// requests wait for it. For measurements.
    pub fn with_runner<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Runner) -> T + Send + 'static,
    ) -> Result<T> {
        let (done, result) = mpsc::channel();
        self.0.inbox.alone(Box::new(move |runner| {
            // Whoever asked may be gone.
            let _ = done.send(work(runner));
        }))?;
        // Work that is not done was left by a thread that ends.
        result.recv().map_err(|_| self.0.inbox.why_closed())
    }

    /// Forgets all cached tokens that no answer uses.
    pub fn forget(&self) -> Result<()> {
        self.with_runner(Runner::forget)
    }

    /// Ends all answers, frees the device's memory, and refuses further requests.
    pub fn unload(&self) {
        self.0.shut();
    }
}

impl Shared {
    fn shut(&self) {
        self.inbox.close(&Error::Unloaded);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            // The last handle may be dropped by work that the thread does.
            && thread.thread().id() != std::thread::current().id()
        {
            // It tells its panics to whoever waits.
            let _ = thread.join();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.shut();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("model", &self.model().name())
            .field("device", &self.describe())
            .finish_non_exhaustive()
    }
}
