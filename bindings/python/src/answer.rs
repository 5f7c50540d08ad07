//! One answer while it comes.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;
use lapidary::runner::Logprobs;
use lapidary::serde_json::{Value, json};
use lapidary::{CancelToken, Event, Finish, FinishReason, Reply, Request};
use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::engine::Home;
use crate::error::{Result, guarded};
use crate::media;
use crate::wait::Bell;

/// One answer while it comes. Dropping it cancels.
#[pyclass(frozen, module = "lapidary._native")]
pub(crate) struct Answer {
    /// Goes before the engine's home does. Nothing once it was closed.
    state: Mutex<Option<State>>,
    cancel: CancelToken,
    bell: Arc<Bell>,
    prompt_tokens: usize,
    _home: Arc<Home>,
}

struct State {
    answer: lapidary::Answer,
    /// Tokens whose text did not come yet.
    tokens: Vec<Token>,
}

/// A token: its id, how likely it was, and the likeliest instead of it.
type Token = (u32, Option<f32>, Vec<(u32, f32)>);

/// What Python is told: what kind of news it is, its text or JSON, and the tokens that it came with.
type News = (&'static str, String, Vec<Token>);

fn token(id: u32, logprobs: Option<Logprobs>) -> Token {
    let logprob = logprobs.as_ref().map(|l| l.logprob);
    (id, logprob, logprobs.map(|l| l.top).unwrap_or_default())
}

impl Answer {
    /// Asks for one. Its prompt is made here, so that its length is known.
    pub(crate) fn ask(home: Arc<Home>, request: Request) -> Result<Self> {
        let (model, engine) = home.loaded()?;
        let prompt = request.prompt(&model)?;
        let prompt_tokens = prompt.tokens.len();
        let answer = engine.answer(request.with_prompt(prompt))?;
        Ok(Self::new(answer, home, prompt_tokens))
    }

    pub(crate) fn new(answer: lapidary::Answer, home: Arc<Home>, prompt_tokens: usize) -> Self {
        let cancel = answer.cancel_token();
        let state = Mutex::new(Some(State { answer, tokens: vec![] }));
        Answer { state, cancel, bell: Arc::default(), prompt_tokens, _home: home }
    }

    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next news, for any number of threads at once: each goes to one of them.
    fn poll(&self) -> Poll<Result<Option<News>>> {
        let waker = Waker::from(self.bell.clone());
        let mut context = Context::from_waker(&waker);
        let mut state = self.lock();
        let Some(State { answer, tokens }) = &mut *state else { return Poll::Ready(Ok(None)) };
        loop {
            let event = match Pin::new(&mut *answer).poll_next(&mut context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Err(e.into())),
                Poll::Ready(Some(Ok(event))) => event,
            };
            let (kind, text) = match event {
                Event::Token { id, logprobs } => {
                    tokens.push(token(id, logprobs));
                    continue;
                }
                Event::Text(text) => ("text", text),
                Event::Thinking(text) => ("thinking", text),
                Event::Progress { done, total } => {
                    ("progress", json!({ "done": done, "total": total }).to_string())
                }
                Event::ToolCallBegin { index, name } => {
                    ("call_begin", json!({ "index": index, "name": name }).to_string())
                }
                Event::ToolCallArguments { index, json: more } => {
                    ("call_arguments", json!({ "index": index, "json": more }).to_string())
                }
                Event::ToolCall(call) => ("call", media::call(&call).to_string()),
                Event::ToolCallFailed { index } => {
                    ("call_failed", json!({ "index": index }).to_string())
                }
                Event::Finished(finish) => ("finished", finished(&finish).to_string()),
                // What is not known here is not told.
                _ => continue,
            };
            return Poll::Ready(Ok(Some((kind, text, std::mem::take(tokens)))));
        }
    }

    /// Waits for the next news, without Python's lock but for a look at signals now and then.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<News>> {
        loop {
            let polled = py.detach(|| {
                guarded(|| {
                    let count = self.bell.count();
                    let polled = self.poll();
                    if polled.is_pending() {
                        self.bell.wait(count);
                    }
                    Ok(polled)
                })
            })?;
            match polled {
                Poll::Ready(news) => return Ok(news?),
                Poll::Pending => py.check_signals()?,
            }
        }
    }
}

#[pymethods]
impl Answer {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<News>> {
        self.wait(py)
    }

    /// Ends it early: what was said stays.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Ends it and forgets it.
    fn close(&self, py: Python<'_>) {
        self.cancel.cancel();
        py.detach(|| {
            let state = self.lock().take();
            drop(state);
        });
        self.bell.ring();
    }

    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Waits for the end, and tells what came: JSON, tokens, tokens of the prompt, and the embedding.
    fn reply(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        while self.wait(py)?.is_some() {}
        self.so_far(py)
    }

    /// What came until now, in the same form.
    fn so_far(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let reply = py.detach(|| {
            let state = self.lock();
            let reply = state.as_ref().map(|state| state.answer.so_far().clone());
            reply.unwrap_or_default()
        });
        let Reply { tokens, logprobs, prompt_logprobs, embedding, .. } = &reply;
        let whole = json!({
            "text": reply.text,
            "thinking": reply.thinking,
            "tool_calls": reply.tool_calls.iter().map(media::call).collect::<Value>(),
            "finish": reply.finish.as_ref().map(finished),
        });
        let told = |l: &Logprobs| (l.logprob, l.top.clone());
        let all: Vec<_> = logprobs.iter().map(told).collect();
        let prompt: Vec<_> = prompt_logprobs.iter().map(|l| l.as_ref().map(told)).collect();
        let whole = (whole.to_string(), tokens.clone(), all, prompt, embedding.clone());
        Ok(whole.into_pyobject(py)?.into_any().unbind())
    }
}

fn finished(finish: &Finish) -> Value {
    let stats = &finish.stats;
    json!({
        "reason": match finish.reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
            FinishReason::Deadline => "deadline",
        },
        "stop_string": finish.stop_string,
        "stats": {
            "prompt_tokens": stats.prompt_tokens,
            "reused_tokens": stats.reused_tokens,
            "new_tokens": stats.new_tokens,
            "first_token_seconds": stats.first_token_s,
            "encode_seconds": stats.encode_s,
            "prefill_seconds": stats.prefill_s,
            "decode_seconds": stats.decode_s,
            "prefill_tokens_per_second": stats.prefill_tokens_per_s(),
            "decode_tokens_per_second": stats.decode_tokens_per_s(),
            "seed": stats.seed,
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
        },
    })
}
