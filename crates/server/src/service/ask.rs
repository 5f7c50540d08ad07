//! From what a request wants to its answers' events.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use lapidary::{Answer, Engine, Event, FinishReason, Prompt, Request};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;

use super::Result;
use super::entry::Lease;
use super::failure::Failure;
use super::keys::Scope;
use super::log::{Trace, round};
use super::wanted::Wanted;
use crate::app::App;

/// Answers while they come: events with the number of the answer. Dropping it cancels all of them.
pub struct Answers {
    events: mpsc::Receiver<(usize, Result<Event>)>,
    /// What was taken out to look at it.
    ahead: VecDeque<(usize, Result<Event>)>,
    /// What is being answered.
    pub asked: Asked,
}

/// What is being answered.
#[derive(Clone)]
pub struct Asked {
    /// The model.
    pub lease: Lease,
    /// The prompts, as tokens.
    pub prompts: Vec<Arc<Prompt>>,
}

/// A prompt that is made and fits, and what is asked of it.
pub struct Made {
    request: Request,
    prompt: Arc<Prompt>,
    n: usize,
    seed: Option<u64>,
}

impl Asked {
    /// Tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }
}

impl App {
    /// Asks for answers. The prompt is made on a thread for such work; then this returns, and events
    /// come as the answers do.
    pub async fn ask(
        &self,
        lease: &Lease,
        scope: Scope,
        wanted: Wanted,
        trace: &Trace,
    ) -> Result<Answers> {
        self.ask_all(lease, scope, vec![wanted], trace).await
    }

    /// Asks for the answers to several prompts; they are numbered in order. Nothing is begun before
    /// all prompts are made and fit.
    pub async fn ask_all(
        &self,
        lease: &Lease,
        scope: Scope,
        all: Vec<Wanted>,
        trace: &Trace,
    ) -> Result<Answers> {
        all.iter().try_for_each(|wanted| wanted.check(self.limits()))?;
        if self.is_stopping() {
            return Err(Failure::stopping());
        }
        // No prompt is made for a queue that is full.
        let room = lease.entry().admit(all.iter().map(|wanted| wanted.n).sum())?;
        let made = self.made(lease, scope, all).await?;
        self.begun(lease, made, room, trace).await
    }

    /// Makes prompts and checks that they fit; nothing is begun.
    pub async fn made(&self, lease: &Lease, scope: Scope, all: Vec<Wanted>) -> Result<Vec<Made>> {
        let mut made = Vec::with_capacity(all.len());
        for wanted in all {
            let engine = lease.engine().clone();
            made.push(self.prepare(move || Made::new(&engine, scope, &wanted)).await?);
        }
        Ok(made)
    }

    /// Begins what was made, as many answers as there is room for.
    pub async fn begun(
        &self,
        lease: &Lease,
        made: Vec<Made>,
        mut room: OwnedSemaphorePermit,
        trace: &Trace,
    ) -> Result<Answers> {
        trace.set("model", lease.entry().name());
        let prompts: Vec<Arc<Prompt>> = made.iter().map(|made| made.prompt.clone()).collect();
        trace.add("prompt_tokens", prompts.iter().map(|prompt| prompt.tokens.len()).sum());
        let (engine, broken) = (lease.engine().clone(), lease.clone());
        // Grammars are compiled here.
        let begin = move || {
            let begin = made.iter().flat_map(|made| made.begin(&engine));
            let answers = begin.collect::<lapidary::Result<Vec<Answer>>>().inspect_err(|e| {
                if matches!(e, lapidary::Error::Stopped { .. }) {
                    broken.discard();
                }
            });
            Ok(answers?)
        };
        let answers = self.prepare(begin).await?;
        let (sender, events) = mpsc::channel(self.limits().events.max(1));
        for (index, answer) in answers.into_iter().enumerate() {
            let pump = Pump {
                app: self.clone(),
                lease: lease.clone(),
                trace: trace.clone(),
                sender: sender.clone(),
                index,
                // There is one for each answer.
                _permit: room.split(1),
                times: Times::new(trace.begun()),
            };
            tokio::spawn(pump.run(answer));
        }
        let asked = Asked { lease: lease.clone(), prompts };
        Ok(Answers { events, ahead: VecDeque::new(), asked })
    }

    /// Does what takes a processor's time on a thread for it; no more at once than there are
    /// processors.
    pub async fn prepare<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turn = self.turn().await?;
        // The work goes on if whoever asked has gone, and so its turn lasts as long as it does.
        let work = move || {
            let _turn = turn;
            work()
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|e| Err(Failure::internal(format!("preparing a request: {e}"))))
    }
}

impl Made {
    fn new(engine: &Engine, scope: Scope, wanted: &Wanted) -> Result<Self> {
        let (request, prompt) = wanted.prompted(engine.model(), scope.0)?;
        let size = engine.metadata().vocab_size;
        if let Some(id) = prompt.tokens.iter().find(|id| **id >= size) {
            let what = format!("there is no token {id}; there are {size}");
            return Err(Failure::param("prompt", what));
        }
        let context = wanted.context.unwrap_or(usize::MAX).min(engine.max_context());
        // An embedding needs no room for an answer.
        let room = usize::from(!wanted.embeds);
        if prompt.tokens.len() + room > context {
            return Err(Failure::context(prompt.tokens.len(), context));
        }
        let left = context - prompt.tokens.len();
        let request = match wanted.context.is_some() && !wanted.embeds {
            true => request.max_tokens(wanted.max_tokens.unwrap_or(usize::MAX).min(left)),
            false => request,
        };
        let (n, seed) = (wanted.n, wanted.sampling.seed);
        Ok(Made { request, prompt: Arc::new(prompt), n, seed })
    }

    /// Asks the engine for its answers.
    fn begin(&self, engine: &Engine) -> impl Iterator<Item = lapidary::Result<Answer>> {
        (0..self.n).map(move |i| {
            let request = self.request.clone();
            engine.answer(match self.seed {
                Some(seed) => request.seed(seed.wrapping_add(i as u64)),
                None => request,
            })
        })
    }
}

impl Answers {
    /// The next event, and which answer it is of; `None` when all have ended.
    pub async fn next(&mut self) -> Option<(usize, Result<Event>)> {
        match self.ahead.pop_front() {
            Some(event) => Some(event),
            None => self.events.recv().await,
        }
    }

    /// Waits for the first event, for a while: a failure that comes at once can still have a status
    /// of its own.
    pub async fn begin(&mut self, patience: Duration) -> Result<()> {
        if let Ok(Some(first)) = tokio::time::timeout(patience, self.events.recv()).await {
            if let (_, Err(failure)) = first {
                return Err(failure);
            }
            self.ahead.push_back(first);
        }
        Ok(())
    }
}

impl Stream for Answers {
    type Item = (usize, Result<Event>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.ahead.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None => self.events.poll_recv(context),
        }
    }
}

/// Brings one answer's events from the engine to whoever reads them. It takes them as they come, so
/// the engine never waits; a reader that is too slow loses the answer.
struct Pump {
    app: App,
    lease: Lease,
    trace: Trace,
    sender: mpsc::Sender<(usize, Result<Event>)>,
    index: usize,
    _permit: Option<OwnedSemaphorePermit>,
    times: Times,
}

/// When tokens came.
struct Times {
    begun: Instant,
    last: Option<Instant>,
    n: usize,
}

impl Times {
    fn new(begun: Instant) -> Self {
        Times { begun, last: None, n: 0 }
    }
}

impl Pump {
    async fn run(mut self, mut answer: Answer) {
        let limit = self.app.limits().request_time();
        let deadline = tokio::time::Instant::from_std(self.times.begun) + limit;
        let ending: CancellationToken = self.app.ending().clone();
        let closed = self.sender.clone();
        let reason = loop {
            let event = tokio::select! {
                event = StreamExt::next(&mut answer) => event,
                () = closed.closed() => break "cancelled",
                () = tokio::time::sleep_until(deadline) => {
                    self.fail(Failure::deadline(limit.as_secs()));
                    break "error";
                }
                () = ending.cancelled() => {
                    self.fail(Failure::stopping());
                    break "error";
                }
            };
            let Some(event) = event else { break "error" };
            if let Some(reason) = self.take(event) {
                break reason;
            }
        };
        // Whatever is not over is cancelled here.
        drop(answer);
        self.end(reason);
    }

    /// Notes an event and hands it on; says how the answer ended if it did.
    fn take(&mut self, event: Result<Event, lapidary::Error>) -> Option<&'static str> {
        let model = self.lease.entry().name();
        let mut reason = None;
        match &event {
            Ok(Event::Token { .. }) => {
                let now = Instant::now();
                let since = self.times.last.unwrap_or(self.times.begun);
                let is_first = self.times.n == 0;
                self.app.metrics().token(model, is_first, (now - since).as_secs_f64());
                if is_first && self.index == 0 {
                    let ms = (now - self.times.begun).as_secs_f64() * 1e3;
                    self.trace.set("first_token_ms", round(ms));
                }
                self.times.last = Some(now);
                self.times.n += 1;
            }
            Ok(Event::Finished(finish)) => {
                let stats = &finish.stats;
                self.app.metrics().prompt(model, stats.prompt_tokens, stats.reused_tokens);
                self.trace.add("cached_tokens", stats.reused_tokens);
                reason = Some(match finish.reason {
                    FinishReason::Stop => "stop",
                    FinishReason::Length | FinishReason::Deadline => "length",
                    FinishReason::Cancelled => "cancelled",
                });
            }
            Err(e) => {
                if matches!(e, lapidary::Error::Stopped { .. }) {
                    self.lease.discard();
                }
                reason = Some("error");
            }
            Ok(_) => {}
        }
        let event = event.map_err(|e| {
            let failure = Failure::from(e);
            self.trace.failed(&failure);
            failure
        });
        match self.sender.try_send((self.index, event)) {
            Ok(()) => reason,
            // As many events as may wait do so, or nobody is there.
            Err(_) => Some("cancelled"),
        }
    }

    fn fail(&self, failure: Failure) {
        self.trace.failed(&failure);
        let _ = self.sender.try_send((self.index, Err(failure)));
    }

    fn end(&self, reason: &'static str) {
        let seconds = self.times.begun.elapsed().as_secs_f64();
        self.app.metrics().ended(self.lease.entry().name(), reason, seconds);
        self.trace.add("new_tokens", self.times.n);
        self.trace.set("finish", reason);
    }
}
