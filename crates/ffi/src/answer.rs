//! Answers while they come.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use lapidary::CancelToken;

use crate::engine::Home;
use crate::error::{Result, guarded};
use crate::message::ToolCall;
use crate::work::Bell;

/// An answer while it comes. Dropping it cancels the answer.
#[derive(uniffi::Object)]
pub struct AnswerStream {
    /// Goes before the engine's home does.
    answer: Mutex<lapidary::Answer>,
    cancel: CancelToken,
    bell: Arc<Bell>,
    _home: Arc<Home>,
}

/// What happens to an answer, in order; the last is `Finished` or an error.
#[derive(Clone, Debug, PartialEq, uniffi::Enum)]
pub enum Event {
    /// More of the prompt was read, if that is asked for.
    Progress {
        /// Tokens of the prompt that are in the caches.
        done: u32,
        /// Tokens of the prompt.
        total: u32,
    },
    /// Text for the user.
    Text {
        /// More of it.
        text: String,
    },
    /// What the model thinks.
    Thinking {
        /// More of it.
        text: String,
    },
    /// A token, if that is asked for.
    Token {
        /// Its id.
        id: u32,
        /// The logarithm of its probability, if that is asked for.
        logprob: Option<f32>,
        /// The likeliest tokens, best first.
        top: Vec<TokenLogprob>,
    },
    /// A call of a tool begins.
    ToolCallBegin {
        /// Which call of this answer, from 0.
        index: u32,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments.
    ToolCallArguments {
        /// Which call.
        index: u32,
        /// More of their JSON.
        json: String,
    },
    /// A call is whole.
    ToolCall {
        /// Which call.
        index: u32,
        /// What the tool's result refers to.
        id: String,
        /// The tool's name.
        name: String,
        /// Its arguments: a JSON object.
        arguments: String,
    },
    /// What had begun as a call was none; its text follows.
    ToolCallFailed {
        /// Which call.
        index: u32,
    },
    /// The answer is complete.
    Finished {
        /// How it ended.
        finish: Finish,
    },
}

/// How likely a token was.
#[derive(Clone, Copy, Debug, PartialEq, uniffi::Record)]
pub struct TokenLogprob {
    /// Its id.
    pub id: u32,
    /// The logarithm of its probability.
    pub logprob: f32,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Which of the stop strings ended it.
    pub stop_string: Option<u32>,
    /// How it went.
    pub stats: Stats,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum FinishReason {
    /// The model was done, or came to a stop string.
    Stop,
    /// The limit of tokens or the context was reached.
    Length,
    /// It was cancelled.
    Cancelled,
    /// Its time was over.
    Deadline,
}

/// How an answer went.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How many of them were in the caches already.
    pub reused_tokens: u32,
    /// Tokens of the answer.
    pub new_tokens: u32,
    /// Seconds from the request to its first token, waiting included.
    pub first_token_seconds: Option<f64>,
    /// Seconds that images and audio took.
    pub encode_seconds: f64,
    /// Seconds that the prompt took.
    pub prefill_seconds: f64,
    /// Seconds from the first token to the last.
    pub decode_seconds: f64,
    /// Tokens of the prompt in a second.
    pub prefill_tokens_per_second: Option<f64>,
    /// Tokens of the answer in a second.
    pub decode_tokens_per_second: Option<f64>,
    /// What the random choices were made with.
    pub seed: u64,
    /// Tokens that were guessed.
    pub drafted_tokens: u32,
    /// How many of them were right.
    pub accepted_tokens: u32,
}

/// What came of an answer.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Reply {
    /// What is said to the user.
    pub text: String,
    /// What the model thought.
    pub thinking: String,
    /// The tools that it calls.
    pub tool_calls: Vec<ToolCall>,
    /// How it ended; nothing if it has not, or failed.
    pub finish: Option<Finish>,
}

impl AnswerStream {
    pub(crate) fn new(answer: lapidary::Answer, home: Arc<Home>) -> Self {
        let cancel = answer.cancel_token();
        AnswerStream { answer: Mutex::new(answer), cancel, bell: Arc::default(), _home: home }
    }

    /// What was read until a panic was read.
    fn lock(&self) -> MutexGuard<'_, lapidary::Answer> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event, for any number of tasks at once: each event goes to one of them.
    fn poll_next(&self, context: &Context<'_>) -> Poll<Result<Option<Event>>> {
        self.bell.add(context.waker());
        let bell = Waker::from(self.bell.clone());
        let mut bell = Context::from_waker(&bell);
        let mut answer = self.lock();
        loop {
            match Pin::new(&mut *answer).poll_next(&mut bell) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Err(e.into())),
                // What is not known here is not told.
                Poll::Ready(Some(Ok(event))) => {
                    if let Some(event) = Event::of(event) {
                        return Poll::Ready(Ok(Some(event)));
                    }
                }
            }
        }
    }
}

#[uniffi::export]
impl AnswerStream {
    /// Waits for the next event; nothing comes after the last, nor after an error.
    pub async fn next(&self) -> Result<Option<Event>> {
        poll_fn(|context| match guarded(|| Ok(self.poll_next(context))) {
            Ok(polled) => polled,
            Err(e) => Poll::Ready(Err(e)),
        })
        .await
    }

    /// Ends the answer early: what was said stays, and `Finished` says that it was cancelled.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// What came until now.
    pub fn so_far(&self) -> Reply {
        Reply::of(self.lock().so_far())
    }

    /// Reads it to its end. One that was cancelled is what it was until then.
    pub async fn reply(&self) -> Result<Reply> {
        while self.next().await?.is_some() {}
        Ok(self.so_far())
    }
}

impl Event {
    fn of(event: lapidary::Event) -> Option<Self> {
        use crate::count;
        Some(match event {
            lapidary::Event::Progress { done, total } => {
                Event::Progress { done: count(done), total: count(total) }
            }
            lapidary::Event::Text(text) => Event::Text { text },
            lapidary::Event::Thinking(text) => Event::Thinking { text },
            lapidary::Event::Token { id, logprobs } => {
                let top = logprobs.iter().flat_map(|l| l.top.iter().copied());
                let top = top.map(|(id, logprob)| TokenLogprob { id, logprob }).collect();
                Event::Token { id, logprob: logprobs.map(|l| l.logprob), top }
            }
            lapidary::Event::ToolCallBegin { index, name } => {
                Event::ToolCallBegin { index: count(index), name }
            }
            lapidary::Event::ToolCallArguments { index, json } => {
                Event::ToolCallArguments { index: count(index), json }
            }
            lapidary::Event::ToolCall(call) => {
                let index = count(call.index);
                let ToolCall { id, name, arguments } = ToolCall::of(call);
                Event::ToolCall { index, id, name, arguments }
            }
            lapidary::Event::ToolCallFailed { index } => {
                Event::ToolCallFailed { index: count(index) }
            }
            lapidary::Event::Finished(finish) => Event::Finished { finish: Finish::of(&finish) },
            _ => return None,
        })
    }
}

impl Finish {
    fn of(finish: &lapidary::Finish) -> Self {
        use crate::count;
        let stats = &finish.stats;
        Finish {
            reason: match finish.reason {
                lapidary::FinishReason::Stop => FinishReason::Stop,
                lapidary::FinishReason::Length => FinishReason::Length,
                lapidary::FinishReason::Cancelled => FinishReason::Cancelled,
                lapidary::FinishReason::Deadline => FinishReason::Deadline,
            },
            stop_string: finish.stop_string.map(count),
            stats: Stats {
                prompt_tokens: count(stats.prompt_tokens),
                reused_tokens: count(stats.reused_tokens),
                new_tokens: count(stats.new_tokens),
                first_token_seconds: stats.first_token_s,
                encode_seconds: stats.encode_s,
                prefill_seconds: stats.prefill_s,
                decode_seconds: stats.decode_s,
                prefill_tokens_per_second: stats.prefill_tokens_per_s(),
                decode_tokens_per_second: stats.decode_tokens_per_s(),
                seed: stats.seed,
                drafted_tokens: count(stats.drafted_tokens),
                accepted_tokens: count(stats.accepted_tokens),
            },
        }
    }
}

impl Reply {
    fn of(reply: &lapidary::Reply) -> Self {
        Reply {
            text: reply.text.clone(),
            thinking: reply.thinking.clone(),
            tool_calls: reply.tool_calls.iter().cloned().map(ToolCall::of).collect(),
            finish: reply.finish.as_ref().map(Finish::of),
        }
    }
}
