//! What is asked of the runner and what it answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use crate::media::Prompt;
use crate::sampler::SamplingParams;
use crate::stats::Stats;

/// One generation.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt.
    pub prompt: Prompt,
    /// How tokens are chosen.
    pub params: SamplingParams,
    /// The most tokens of the answer; the context may allow fewer. `usize::MAX` for all it allows.
    pub max_new: usize,
    /// Strings that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the program's own.
    pub stop_ids: Vec<u32>,
    /// Whether the program's own end tokens are tokens like others.
    pub ignore_eos: bool,
    /// Whether the text shows special tokens.
    pub keep_special: bool,
    /// Only requests of the same scope share cached tokens.
    pub scope: u64,
}

/// The name of a generation that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GenerationId(pub(crate) u64);

/// What happens to a generation, in order; the last is `Finished` or `Failed`.
#[derive(Debug)]
pub enum Event<'a> {
    /// A token was sampled. The token that stops an answer is not shown.
    Token {
        /// Its id.
        id: u32,
    },
    /// Text that is now certain: valid UTF-8, never part of a stop string.
    Text {
        /// The text, not empty.
        text: &'a str,
    },
    /// The answer is complete.
    Finished(&'a Finish),
    /// The generation ended by an error.
    Failed(&'a Error),
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// The token that stopped it.
    pub stop_id: Option<u32>,
    /// Which of the request's stop strings stopped it.
    pub stop_string: Option<usize>,
    /// How it went.
    pub stats: Stats,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The budget or the context is used up.
    Length,
    /// The caller cancelled.
    Cancelled,
}

/// Asks a generation to end; clones ask the same one. It is looked at before every chunk and
/// token.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl Request {
    /// A request with no stop strings, for as many tokens as the context allows.
    pub fn new(prompt: impl Into<Prompt>, params: SamplingParams) -> Self {
        Request {
            prompt: prompt.into(),
            params,
            max_new: usize::MAX,
            stop: vec![],
            stop_ids: vec![],
            ignore_eos: false,
            keep_special: false,
            scope: 0,
        }
    }
}

impl FinishReason {
    /// OpenAI's word for it.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

impl CancelToken {
    /// Not cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for the end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
