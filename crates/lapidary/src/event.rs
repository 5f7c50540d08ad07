//! What happens to an answer.

use serde_json::{Map, Value};

pub use lapidary_runner::{Finish, FinishReason, Logprobs, Stats};

/// What happens to an answer, in order; the last is [`Event::Finished`] or an error.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// More of the prompt was read. Told only if [`crate::Request::progress`] asked for it.
    Progress {
        /// Tokens of the prompt that are in the caches.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// How likely tokens of the prompt were, in order. Told only if
    /// [`crate::Request::prompt_logprobs`] asked for it.
    PromptLogprobs {
        /// The number of the first of them.
        first: usize,
        /// `None` for the first token of the prompt, and where something is shown or played.
        tokens: Vec<Option<Logprobs>>,
    },
    /// The mean of the prompt's last hidden rows. Told only if [`crate::Request::embedding`] asked
    /// for it.
    Embedding(Vec<f32>),
    /// A token. Told only if [`crate::Request::tokens`] or [`crate::Request::logprobs`] asked for
    /// it. The token that ends an answer is not told.
    Token {
        /// Its id.
        id: u32,
        /// How likely it was, if that was asked for.
        logprobs: Option<Logprobs>,
    },
    /// Text for the user; never part of a stop string.
    Text(String),
    /// What the model thinks.
    Thinking(String),
    /// A call of a tool begins.
    ToolCallBegin {
        /// Which call of this answer, from 0.
        index: usize,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments.
    ToolCallArguments {
        /// Which call.
        index: usize,
        /// More of their JSON.
        json: String,
    },
    /// A call is whole.
    ToolCall(ToolCall),
    /// What had begun as a call was none; its text follows.
    ToolCallFailed {
        /// Which call.
        index: usize,
    },
    /// The answer is complete.
    Finished(Finish),
}

/// A tool that the model calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// Which call of its answer, from 0.
    pub index: usize,
    /// What the tool's result refers to; unique in a conversation.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// What is said to the user.
    pub text: String,
    /// What the model thought.
    pub thinking: String,
    /// The tools that it calls.
    pub tool_calls: Vec<ToolCall>,
    /// Its tokens, if they were asked for, without the one that ended it.
    pub tokens: Vec<u32>,
    /// How likely they were, if that was asked for.
    pub logprobs: Vec<Logprobs>,
    /// How likely the tokens of the prompt were, if that was asked for.
    pub prompt_logprobs: Vec<Option<Logprobs>>,
    /// The prompt's embedding, if that was asked for.
    pub embedding: Option<Vec<f32>>,
    /// How it ended; `None` if it was dropped before.
    pub finish: Option<Finish>,
}

impl Reply {
    /// Whether anything was said, thought or called.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thinking.is_empty() && self.tool_calls.is_empty()
    }

    pub(crate) fn push(&mut self, event: &Event) {
        match event {
            Event::Text(text) => self.text.push_str(text),
            Event::Thinking(text) => self.thinking.push_str(text),
            Event::ToolCall(call) => self.tool_calls.push(call.clone()),
            Event::Token { id, logprobs } => {
                self.tokens.push(*id);
                self.logprobs.extend(logprobs.clone());
            }
            Event::PromptLogprobs { tokens, .. } => {
                self.prompt_logprobs.extend_from_slice(tokens);
            }
            Event::Embedding(values) => self.embedding = Some(values.clone()),
            Event::Finished(finish) => self.finish = Some(finish.clone()),
            Event::Progress { .. }
            | Event::ToolCallBegin { .. }
            | Event::ToolCallArguments { .. }
            | Event::ToolCallFailed { .. } => {}
        }
    }
}
