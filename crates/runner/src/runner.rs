//! The runner: an engine with its tokenizer and template, and the conversations in its pages.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use lapidary_backend::{Engine, LoadOptions, Results, Wanted};
use lapidary_program::{Metadata, Program, method, output};
use lapidary_text::{ChatInput, ChatTemplate, Medium, Prompt, PromptBuilder, SoftRun, Tokenizer};

use crate::batch::{self, Batch, How};
use crate::clock::Clock;
use crate::draft::Drafting;
use crate::drafts::Drafts;
use crate::error::{Error, Result};
use crate::flight::{Flight, Scratch};
use crate::generation::{Generation, Limits, check_ids};
use crate::pages::{Held, PageCopy, Pages, Text};
use crate::request::{CancelToken, Event, Finish, GenerationId, Logprobs, Request};
use crate::sampler::{Sampler, SamplingParams, all_finite};
use crate::scheduler::{self, Scheduler};
use crate::score;
use crate::soft::{SoftRows, SoftUse};

/// Runs generations on an engine.
///
/// [`generate`](Runner::generate) is the simple way: one request from beginning to end.
/// [`submit`](Runner::submit) and [`step`](Runner::step) run many at once: each step packs the next
/// token of every answer and chunks of prompts into one call of the engine.
pub struct Runner {
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) program: Arc<Program>,
    prompts: PromptBuilder,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) load_s: Option<f64>,
    max_context: usize,
    pub(crate) scheduler: Scheduler<Generation>,
    /// Calls that were submitted, the oldest first.
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) batch: Batch,
    pub(crate) results: Results,
    pub(crate) soft_rows: SoftRows,
    pub(crate) sampler: Sampler,
    pub(crate) failed: Vec<(GenerationId, Error)>,
    next_id: u64,
    /// When the last call ended.
    pub(crate) last_end: Duration,
    /// Scratch.
    pub(crate) copies: Vec<(u64, PageCopy)>,
    pub(crate) scratch: Scratch,
    pub(crate) drafting: Drafting,
    pub(crate) drafts: Drafts,
    pub(crate) logprobs: Logprobs,
}

/// What a runner is held to.
#[derive(Clone)]
pub struct RunnerOptions {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// The time between two tokens of an answer, as far as prompts of others are to blame for it.
    pub between_tokens: Duration,
    /// Requests that may wait while as many run as the engine was loaded for.
    pub queue: usize,
    /// What guesses the next tokens, so that one call may give several.
    pub drafting: Drafting,
}

/// Which rows of logits are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// One for each token.
    All,
    /// That of the last token.
    Last,
}

impl RunnerOptions {
    /// What suits most, with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        RunnerOptions {
            clock,
            between_tokens: Duration::from_millis(100),
            queue: 1024,
            drafting: Drafting::Off,
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Default for RunnerOptions {
    fn default() -> Self {
        RunnerOptions::new(Arc::new(crate::clock::SystemClock::default()))
    }
}

impl Runner {
    /// A runner over an engine; reads the tokenizer and the chat template from the program.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn new(engine: Box<dyn Engine>) -> Result<Self> {
        let prompts = PromptBuilder::new(engine.program())?;
        Self::with_options(engine, prompts, RunnerOptions::default())
    }

    /// A runner with a tokenizer and a template that were loaded apart, for instance while the
    /// weights were being packed.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn with_parts(
        engine: Box<dyn Engine>,
        tokenizer: Option<Arc<Tokenizer>>,
        template: Option<Arc<ChatTemplate>>,
    ) -> Result<Self> {
        let metadata = engine.program().metadata().clone();
        Self::with_prompts(engine, PromptBuilder::with_parts(metadata, tokenizer, template))
    }

    /// A runner whose prompts are made by `prompts`.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn with_prompts(engine: Box<dyn Engine>, prompts: PromptBuilder) -> Result<Self> {
        Self::with_options(engine, prompts, RunnerOptions::default())
    }

    /// A runner with every choice made.
    pub fn with_options(
        engine: Box<dyn Engine>,
        prompts: PromptBuilder,
        options: RunnerOptions,
    ) -> Result<Self> {
        let program = engine.program().clone();
        let loaded = engine.options();
        let forward = program.method(method::FORWARD).map_err(lapidary_backend::Error::from)?;
        let pages = Pages::new(program.kv_groups(), |g| loaded.pages_of(g));
        if options.drafting.uses_model() {
            check_drafter(&program, loaded)?;
        }
        let max_context = loaded.max_context.min(program.metadata().max_context_len) as usize;
        let (max_context, chunk) = pages.capacity(max_context);
        if max_context == 0 {
            let what = "its KV caches have no page; load it with more".into();
            return Err(Error::Program(what));
        }
        let chunk = chunk.min(loaded.limits.chunk.min(forward.max_chunk) as usize).max(1);
        let tokens = (loaded.limits.tokens as usize).max(chunk);
        let limits = scheduler::Limits {
            chunk,
            tokens,
            n_sequences: (loaded.n_sequences as usize).clamp(1, tokens),
            queue: options.queue,
            between_tokens: options.between_tokens,
            score_rows: score::rows_per_call(program.metadata().vocab_size),
        };
        Ok(Runner {
            engine,
            program,
            prompts,
            clock: options.clock,
            drafting: options.drafting,
            drafts: Drafts::default(),
            load_s: None,
            max_context,
            scheduler: Scheduler::new(pages, limits),
            flights: VecDeque::new(),
            batch: Batch::with_capacity(tokens),
            results: Results::default(),
            soft_rows: SoftRows::default(),
            sampler: Sampler::default(),
            failed: Vec::new(),
            next_id: 0,
            last_end: Duration::ZERO,
            copies: Vec::new(),
            scratch: Scratch::default(),
            logprobs: Logprobs::default(),
        })
    }

    /// Tells how long loading took, for the statistics.
    pub fn set_load_seconds(&mut self, seconds: f64) {
        self.load_s = Some(seconds);
    }

    /// Changes what guesses the next tokens. No generation may be under way.
    pub fn set_drafting(&mut self, drafting: Drafting) -> Result<()> {
        self.idle()?;
        if drafting.uses_model() {
            check_drafter(&self.program, self.engine.options())?;
        }
        self.drafting = drafting;
        Ok(())
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Facts about the model.
    pub fn metadata(&self) -> &Metadata {
        self.program.metadata()
    }

    /// One line about backend and device.
    pub fn describe(&self) -> String {
        self.engine.describe()
    }

    /// The tokenizer, if the program has one.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        Ok(self.prompts.tokenizer()?)
    }

    /// The chat template, if the program has one.
    pub fn template(&self) -> Result<&Arc<ChatTemplate>> {
        Ok(self.prompts.template()?)
    }

    /// Tokens that prompt and answer may fill together.
    pub fn max_context(&self) -> usize {
        self.max_context
    }

    /// What makes prompts; a clone of it may do so on any thread.
    pub fn prompts(&self) -> &PromptBuilder {
        &self.prompts
    }

    /// See [`PromptBuilder::text_prompt`].
    pub fn text_prompt(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.prompts.text_prompt(text)?)
    }

    /// See [`PromptBuilder::media_prompt`].
    pub fn media_prompt(&self, media: &[Medium], text: &str) -> Result<Prompt> {
        Ok(self.prompts.media_prompt(media, text)?)
    }

    /// See [`PromptBuilder::chat_prompt`].
    pub fn chat_prompt(&self, input: &ChatInput<'_>, media: &[Medium]) -> Result<Prompt> {
        Ok(self.prompts.chat_prompt(input, media)?)
    }

    /// See [`PromptBuilder::ids_prompt`].
    pub fn ids_prompt(&self, ids: Vec<u32>, media: &[Medium]) -> Result<Prompt> {
        Ok(self.prompts.ids_prompt(ids, media)?)
    }

    /// Runs one request from beginning to end, telling `on_event` what happens.
    /// No other generation may be under way.
    pub fn generate(
        &mut self,
        request: Request,
        cancel: &CancelToken,
        mut on_event: impl FnMut(Event<'_>),
    ) -> Result<Finish> {
        self.idle()?;
        self.submit(request, cancel)?;
        self.run_alone(&mut on_event)
    }

    /// The `n` most likely next tokens one after another, with no token suppressed or taken for an
    /// end. No other generation may be under way.
    pub fn greedy(&mut self, prompt: impl Into<Prompt>, n: usize) -> Result<Vec<u32>> {
        self.idle()?;
        let request = Request {
            max_new: n,
            ignore_eos: true,
            ..Request::new(prompt, SamplingParams::greedy())
        };
        self.enqueue(request, &CancelToken::new(), false)?;
        let mut answer = Vec::with_capacity(n.min(self.max_context));
        self.run_alone(&mut |event| {
            if let Event::Token { id, .. } = event {
                answer.push(id);
            }
        })?;
        Ok(answer)
    }

    /// Runs tokens from position 0 in chunks of at most `chunk` and shows the logits of each chunk:
    /// `sink` gets the number of the first token and one row for each asked token of the chunk.
    /// Nothing that was run before is reused, and nothing of this is found later.
    /// No generation may be under way.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        rows: Rows,
        chunk: Option<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.logits_with(tokens, &[], rows, chunk, sink)
    }

    /// The same for tokens of which some are soft. A chunk may be longer than asked for where a
    /// block of soft tokens is.
    pub fn logits_with(
        &mut self,
        tokens: &[u32],
        soft: &[SoftRun],
        rows: Rows,
        chunk: Option<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.idle()?;
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if tokens.len() > self.max_context {
            let (prompt, max_context) = (tokens.len(), self.max_context);
            return Err(Error::ContextLength { prompt, max_context });
        }
        check_ids(tokens, self.metadata().vocab_size)?;
        let mut held = self.scheduler.pages.start_alone();
        let done = self.run_chunks(&mut held, (tokens, soft), rows, chunk, sink);
        self.scheduler.pages.release(&mut held);
        done
    }

    fn run_chunks(
        &mut self,
        held: &mut Held,
        (tokens, soft): (&[u32], &[SoftRun]),
        rows: Rows,
        chunk: Option<usize>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let most = self.scheduler.limits.chunk;
        let blocks = SoftUse::of(&self.program).check(soft, tokens.len(), most)?;
        let made = soft
            .iter()
            .map(|run| self.soft_rows.get(self.engine.as_mut(), &run.input, None))
            .collect::<Result<Vec<_>>>()?;
        let chunk = chunk.unwrap_or(usize::MAX).clamp(blocks.longest().max(1), most);
        let text = Text { tokens, soft: &[], scope: 0 };
        let wants = [Wanted::whole(output::LOGITS)];
        let mut first = 0;
        while first < tokens.len() {
            let n = blocks.cut(first, chunk.min(tokens.len() - first));
            if !self.scheduler.pages.reserve(held, first + n) {
                let what = "the KV caches have too few pages".into();
                return Err(lapidary_backend::Error::OutOfMemory(what).into());
            }
            self.batch.clear();
            self.batch.push(first, &tokens[first..first + n]);
            let made = soft.iter().zip(&made).map(|(run, rows)| (run, rows.as_slice()));
            blocks.apply(&mut self.batch, (0, first, n), made);
            let last = first + n == tokens.len();
            match rows {
                Rows::All => (0..n).for_each(|t| _ = self.batch.ask(t)),
                Rows::Last if last => _ = self.batch.ask_last(),
                Rows::Last => {}
            }
            let asks = rows == Rows::All || last;
            let how = How { wants: if asks { &wants } else { &[] }, ..How::default() };
            let sequence = std::iter::once(&*held);
            let ticket = self.batch.submit(self.engine.as_mut(), sequence, how)?;
            batch::wait(self.engine.as_mut(), ticket, method::FORWARD, &mut self.results)?;
            if asks {
                let logits = &batch::logits(&self.results)?.data;
                if !all_finite(logits) {
                    let sequence = std::iter::once(&*held);
                    let node = self.batch.first_non_finite(self.engine.as_mut(), sequence);
                    return Err(Error::NonFiniteLogits { node });
                }
                sink(if rows == Rows::All { first } else { tokens.len() - 1 }, logits);
            }
            self.scheduler.pages.wrote(held, &text, n);
            first += n;
        }
        Ok(())
    }

    /// Adds a request to those that [`step`](Runner::step) works on.
    pub fn submit(&mut self, request: Request, cancel: &CancelToken) -> Result<GenerationId> {
        self.enqueue(request, cancel, true)
    }

    /// Generations that are waiting or under way.
    pub fn n_generations(&self) -> usize {
        self.scheduler.len()
    }

    /// Generations that are waiting.
    pub fn n_waiting(&self) -> usize {
        self.scheduler.n_waiting()
    }

    /// How often a generation was put back to the queue because there were too few pages.
    pub fn n_preempted(&self) -> usize {
        self.scheduler.n_preempted()
    }

    /// Pages of each group that hold nothing.
    pub fn free_pages(&self) -> Vec<u32> {
        self.scheduler.pages.n_free()
    }

    /// Tokens of a generation's prompt that were run or reused, and all of them.
    pub fn prompt_progress(&self, id: GenerationId) -> Option<(usize, usize)> {
        let sequence = self.scheduler.get(id.0)?;
        Some((sequence.held.len().min(sequence.prompt_len), sequence.prompt_len))
    }

    /// Pages that generations hold, and all of them, of all groups together.
    pub fn pages_in_use(&self) -> (usize, usize) {
        self.scheduler.pages.in_use()
    }

    /// Forgets all cached tokens that no generation uses, and all soft rows.
    pub fn forget(&mut self) {
        self.soft_rows.forget();
        self.scheduler.pages.forget();
    }

    fn enqueue(
        &mut self,
        request: Request,
        cancel: &CancelToken,
        suppress: bool,
    ) -> Result<GenerationId> {
        let metadata = self.program.metadata();
        let limits = Limits {
            vocab_size: metadata.vocab_size,
            max_context: self.max_context,
            max_block: self.max_block(),
            soft: SoftUse::of(&self.program),
            eos_ids: &metadata.eos_ids,
            suppress_ids: if suppress { &metadata.suppress_ids } else { &[] },
            tokenizer: self.prompts.tokenizer().ok().map(Arc::as_ref),
            has_hidden: self.has_hidden(),
        };
        let id = GenerationId(self.next_id);
        let seed = RandomState::new().hash_one(self.next_id);
        let now = self.clock.now();
        let sequence = Generation::sequence(id, request, cancel.clone(), (seed, now), &limits)?;
        if self.scheduler.submit(sequence).is_err() {
            return Err(Error::QueueFull { waiting: self.scheduler.n_waiting() });
        }
        self.next_id += 1;
        Ok(id)
    }

    /// The longest block of soft tokens: it must find room beside the next token of every other
    /// answer.
    fn max_block(&self) -> usize {
        let limits = &self.scheduler.limits;
        limits.chunk.min(limits.tokens + 1 - limits.n_sequences)
    }

    /// Whether the program gives the rows that logits are made of.
    fn has_hidden(&self) -> bool {
        let forward = self.program.method(method::FORWARD);
        forward.is_ok_and(|m| m.graph.outputs.iter().any(|out| out.name == output::HIDDEN))
    }

    pub(crate) fn idle(&self) -> Result<()> {
        match self.n_generations() {
            0 => Ok(()),
            active => Err(Error::Busy { active }),
        }
    }

    /// Steps until the only generation ends.
    fn run_alone(&mut self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Finish> {
        let mut end: Option<Result<Finish>> = None;
        while end.is_none() {
            self.step(&mut |_, event| {
                match &event {
                    Event::Finished(finish) => end = Some(Ok((*finish).clone())),
                    Event::Failed(error) => end = Some(Err((*error).clone())),
                    _ => {}
                }
                on_event(event);
            });
        }
        end.expect("the loop ends only with an end")
    }
}

/// Whether the program has a drafter that was loaded, and the rows that it goes on from.
fn check_drafter(program: &Program, options: &LoadOptions) -> Result<()> {
    let is_loaded =
        options.methods.is_empty() || options.methods.iter().any(|m| m == method::DRAFT);
    let forward = program.method(method::FORWARD).map_err(lapidary_backend::Error::from)?;
    let has_hidden = forward.graph.outputs.iter().any(|out| out.name == output::HIDDEN);
    if program.methods().contains_key(method::DRAFT) && is_loaded && has_hidden {
        return Ok(());
    }
    Err(Error::param("draft", "the model has no drafter, or it was not loaded"))
}
