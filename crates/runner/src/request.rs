//! What is asked of the runner and what it answers.

use std::time::Duration;

use lapidary_backend::StopFlag;
use lapidary_text::{AnswerParser, CallDelta, Prompt, TokenConstraint};

use crate::error::{Error, Result};
use crate::generation::check_ids;
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
    /// Whether the text shows special tokens; for an answer without a parser.
    pub keep_special: bool,
    /// What tells thinking and tool calls from text, as
    /// [`PromptBuilder::answer_parser`](lapidary_text::PromptBuilder::answer_parser) makes it.
    /// Without it, all is text.
    pub parser: Option<AnswerParser>,
    /// Only requests of the same scope share cached tokens.
    pub scope: u64,
    /// What the answer may be; anything if there is none.
    pub constraint: Option<Box<dyn TokenConstraint>>,
    /// Whether each token comes with its log-probability, and with those of so many of the likeliest
    /// tokens; at most [`MAX_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// Whether each token of the prompt comes with its log-probability after those before it, and with
    /// those of so many of the likeliest tokens. All of the prompt is run for it.
    pub prompt_logprobs: Option<usize>,
    /// Whether the prompt's embedding is wanted instead of an answer.
    pub embed: bool,
    /// How long the model may think; for an answer with a parser.
    pub thinking: Option<ThinkingLimit>,
    /// How long after it was submitted the answer ends with what there is.
    pub deadline: Option<Duration>,
}

/// How long a model may think.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinkingLimit {
    /// Tokens of all thoughts; `usize::MAX` for as many as leave room for an answer.
    pub tokens: usize,
    /// Tokens that end a thought.
    pub close: Vec<u32>,
}

/// The most log-probabilities that go with a token.
pub const MAX_LOGPROBS: usize = 20;

/// How likely a token was, before temperature and cuts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// The logarithm of its probability.
    pub logprob: f32,
    /// The likeliest tokens, best first: id and the logarithm of its probability.
    pub top: Vec<(u32, f32)>,
}

/// The name of a generation that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GenerationId(pub(crate) u64);

/// What happens to a generation, in order; the last is `Finished` or `Failed`.
#[derive(Debug)]
pub enum Event<'a> {
    /// How likely tokens of the prompt were, if that was asked for: in order, all of them.
    PromptLogprobs {
        /// The number of the first.
        first: usize,
        /// `None` for the first token of all, and for soft ones.
        tokens: &'a [Option<Logprobs>],
    },
    /// The mean of the last hidden rows of the prompt's tokens, if that was asked for.
    Embedding {
        /// Its numbers.
        mean: &'a [f32],
    },
    /// A token was sampled. The token that stops an answer is not shown.
    Token {
        /// Its id.
        id: u32,
        /// How likely it was, if that was asked for.
        logprobs: Option<&'a Logprobs>,
    },
    /// Text that is now certain: valid UTF-8, never part of a stop string.
    Text {
        /// The text, not empty.
        text: &'a str,
    },
    /// More of what the model thinks.
    Thinking {
        /// The text, not empty.
        text: &'a str,
    },
    /// More of a tool call.
    Call(CallDelta<'a>),
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
    /// How likely that token was, if that was asked for.
    pub stop_logprobs: Option<Logprobs>,
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
    /// Its time is over.
    Deadline,
}

/// Asks a generation to end; clones ask the same one. It is looked at before every chunk and
/// token, and by the engine during a call that is for this generation alone.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(pub(crate) StopFlag);

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
            parser: None,
            scope: 0,
            constraint: None,
            logprobs: None,
            prompt_logprobs: None,
            embed: false,
            thinking: None,
            deadline: None,
        }
    }
    /// Checks what can be known without a runner: a runner does so first of all, and whoever is about
    /// to wait for one may do so before.
    pub fn check(&self, max_context: usize, vocab_size: u32) -> Result<()> {
        let prompt = self.prompt.tokens.len();
        if prompt == 0 {
            return Err(Error::EmptyPrompt);
        }
        // What wants no answer leaves no room for one.
        let is_short = self.embed || (self.max_new == 0 && self.prompt_logprobs.is_some());
        if prompt + usize::from(!is_short) > max_context {
            return Err(Error::ContextLength { prompt, max_context });
        }
        check_ids(&self.prompt.tokens, vocab_size)?;
        self.params.check(vocab_size)?;
        if self.max_new == 0 && !is_short {
            return Err(Error::param("max_tokens", "0 tokens were asked for; ask for at least 1"));
        }
        let most = self.logprobs.max(self.prompt_logprobs);
        if let Some(n) = most.filter(|n| *n > MAX_LOGPROBS) {
            return Err(Error::param("top_logprobs", format!("{n} is more than {MAX_LOGPROBS}")));
        }
        Ok(())
    }
}

impl FinishReason {
    /// OpenAI's word for it.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
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
        self.0.set();
    }

    /// Whether the end was asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_set()
    }
}
