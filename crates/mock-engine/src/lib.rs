//! An engine without numbers, for tests above the contract.
//!
//! Its logits are a hash of everything that a token sees, as it is found through the page tables of
//! the call: a wrong table, a stale page or a key of another sequence changes the answer. What the
//! answer should be is known without pages, from an [`Oracle`]. Engines fail, panic, take their time
//! and draw wrong tokens on demand, and tell what they were asked to do.

mod engine;
mod model;
mod program;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapidary_backend::{Abilities, CallLimits, Engine, LoadOptions};
use lapidary_program::Program;

pub use model::Oracle;

/// What the mock does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The logits of the last asked row are not finite.
    Nan,
    /// The call fails when it is submitted; what it wrote is garbage.
    Error,
    /// The call fails when it is waited for; what it wrote is garbage.
    LateError,
    /// The call panics.
    Panic,
}

/// What the engine was asked to do.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Tokens of each call of `forward`.
    pub calls: Vec<usize>,
    /// Rows of each call of `forward`.
    pub rows: Vec<usize>,
    /// Calls of `forward` whose tokens came from an earlier call.
    pub fed: usize,
    /// Calls of `forward` whose rows came back whole.
    pub whole: usize,
    /// Calls of `forward` that made hidden rows, and no logits.
    pub hidden: usize,
    /// The most calls that were under way at once.
    pub in_flight: usize,
    /// Calls of the drafter.
    pub drafts: usize,
    /// Rows that the drafter was to go on from, and that are not those of the token before.
    pub wrong_hidden: usize,
    /// Calls of towers.
    pub towers: usize,
    /// Every `trace` call.
    pub traces: usize,
    /// Pages that were copied.
    pub copied: usize,
    /// Pages of which anything was written, counted once per call.
    pub pages_written: usize,
    /// Keys that were looked for and not found in their place.
    pub stale: usize,
}

impl Log {
    /// Tokens of all calls.
    pub fn n_tokens(&self) -> usize {
        self.calls.iter().sum()
    }
}

/// What a mock is made of.
#[derive(Clone, Debug)]
pub struct Mock {
    /// Tokens that it knows.
    pub vocab_size: u32,
    /// The window of each cache.
    pub windows: Vec<Option<u32>>,
    /// Whether it takes images, whose soft tokens see each other.
    pub images: bool,
    /// Whether it gives the rows that logits are made of.
    pub hidden: bool,
    /// Whether it has a drafter. The first token that this guesses is always right.
    pub drafts: bool,
    /// Positions that the program is made for.
    pub max_context_len: u32,
    /// The most tokens of one sequence that `forward` takes.
    pub method_chunk: u32,
    /// How it is loaded.
    pub options: LoadOptions,
    /// Tokens that end an answer.
    pub eos_ids: Vec<u32>,
    /// Tokens that are never sampled.
    pub suppress_ids: Vec<u32>,
    /// A `tokenizer.json`.
    pub tokenizer: Option<&'static str>,
    /// A chat template.
    pub template: Option<&'static str>,
    /// What it can do with outputs.
    pub abilities: Abilities,
    /// Every so many-th token that it draws is wrong; 0 for none.
    pub wrong_draws: usize,
    /// How often a call is polled before it has ended.
    pub polls: usize,
    /// The time that a call takes, and each token of it.
    pub cost: (Duration, Duration),
    /// What the time goes by on.
    pub clock: VirtualClock,
    /// What happens to calls of `forward`, by their number.
    pub faults: Arc<Mutex<BTreeMap<usize, Fault>>>,
    /// What was asked of its engines.
    pub log: Arc<Mutex<Log>>,
}

/// Time that goes by only when somebody says so.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// The time since it was made.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Lets time go by up to a moment, if that is not past.
    pub fn advance_to(&self, then: Duration) {
        self.0.fetch_max(then.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Default for Mock {
    /// Two caches, one with a window of 4; one sequence of 64 tokens in chunks of 8.
    fn default() -> Self {
        Mock {
            vocab_size: 48,
            windows: vec![Some(4), None],
            images: false,
            hidden: false,
            drafts: false,
            max_context_len: 64,
            method_chunk: 8,
            options: LoadOptions::default(),
            eos_ids: vec![],
            suppress_ids: vec![],
            tokenizer: None,
            template: None,
            abilities: Abilities { max_top_k: 1024, prefers_top_k: false, max_in_flight: 1 },
            wrong_draws: 0,
            polls: 0,
            cost: (Duration::ZERO, Duration::ZERO),
            clock: VirtualClock::default(),
            faults: Arc::default(),
            log: Arc::default(),
        }
        .sized(64, 8, 1)
    }
}

impl Mock {
    /// Loaded for so many sequences of `max_context` positions, in chunks of `chunk`, with pages
    /// for all of them.
    pub fn sized(mut self, max_context: u32, chunk: u32, n_sequences: u32) -> Self {
        self.max_context_len = self.max_context_len.max(max_context);
        self.method_chunk = self.method_chunk.max(chunk);
        let limits = CallLimits { chunk, tokens: chunk + n_sequences - 1, block: chunk };
        let pages = limits.pages(&self.program(), max_context, n_sequences);
        self.options =
            LoadOptions { max_context, n_sequences, limits, pages, ..LoadOptions::default() };
        self
    }

    /// The same with pools of so many pages.
    pub fn with_pages(mut self, n: u32) -> Self {
        self.options.pages.iter_mut().for_each(|pages| *pages = n);
        self
    }

    /// An engine.
    pub fn engine(&self) -> Box<dyn Engine> {
        Box::new(engine::MockEngine::new(self.clone(), Arc::new(self.program())))
    }

    /// Its program.
    pub fn program(&self) -> Program {
        program::program(self)
    }

    /// What is known without pages.
    pub fn oracle(&self) -> Oracle {
        let mut windows = self.windows.clone();
        windows.sort_unstable();
        windows.dedup();
        Oracle::new(windows, self.vocab_size as usize)
    }

    /// The most likely tokens after a prompt, one after another.
    pub fn continuation(&self, prompt: &[u32], n: usize) -> Vec<u32> {
        let mut oracle = self.oracle();
        prompt.iter().for_each(|token| oracle.push(*token));
        let mut answer = Vec::with_capacity(n);
        for _ in 0..n {
            let token = oracle.greedy();
            oracle.push(token);
            answer.push(token);
        }
        answer
    }

    /// The mean of the hidden rows of a text.
    pub fn embedding(&self, text: &[u32]) -> Vec<f32> {
        let mut oracle = self.oracle();
        let mut sum = vec![0.0; program::CHANNELS as usize];
        for token in text {
            oracle.push(*token);
            sum.iter_mut().zip(oracle.hidden()).for_each(|(sum, x)| *sum += f64::from(x));
        }
        sum.into_iter().map(|x| (x / text.len().max(1) as f64) as f32).collect()
    }

    /// The token that is most likely after these.
    pub fn greedy(&self, tokens: &[u32]) -> u32 {
        self.continuation(tokens, 1).first().copied().unwrap_or(0)
    }

    /// What its engines were asked to do.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what they were asked to do.
    pub fn clear_log(&self) {
        *self.log() = Log::default();
    }

    /// Makes a call of `forward` go wrong, by its number since the log was cleared.
    pub fn fail(&self, call: usize, fault: Fault) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).insert(call, fault);
    }

    pub(crate) fn fault(&self, call: usize) -> Option<Fault> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).get(&call).copied()
    }
}
