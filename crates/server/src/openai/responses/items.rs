//! What was answered, as items.

use lapidary::{Message, Part, ToolCall};
use serde_json::{Value, json};

use super::super::shapes::{self, Usage};
use crate::http::Whole;
use crate::service::{Call, End, Lease, Reason, new_id};

/// What was answered until now.
pub(super) struct Made {
    lease: Lease,
    has_logprobs: bool,
    pub items: Vec<Item>,
    end: Option<End>,
}

/// One item.
pub(super) enum Item {
    /// A thought.
    Thought {
        /// Its id.
        id: String,
        /// Its text.
        text: String,
    },
    /// What is said.
    Said {
        /// Its id.
        id: String,
        /// Its text.
        text: String,
        /// How likely its tokens were, if that was asked for.
        logprobs: Vec<Value>,
    },
    /// What is called.
    Called {
        /// Its id.
        id: String,
        /// The call.
        call: Call,
        /// Whether it has come to its end.
        is_whole: bool,
    },
}

impl Item {
    pub fn thought() -> Self {
        Item::Thought { id: new_id("rs_"), text: String::new() }
    }

    pub fn said() -> Self {
        Item::Said { id: new_id("msg_"), text: String::new(), logprobs: vec![] }
    }

    pub fn called(call: Call) -> Self {
        Item::Called { id: new_id("fc_"), call, is_whole: false }
    }

    fn called_whole(call: Call) -> Self {
        Item::Called { id: new_id("fc_"), call, is_whole: true }
    }

    pub fn id(&self) -> &str {
        match self {
            Item::Thought { id, .. } | Item::Said { id, .. } | Item::Called { id, .. } => id,
        }
    }

    /// The item; one that is begun has nothing in it yet.
    pub fn json(&self, status: &str) -> Value {
        let is_begun = status == "in_progress";
        match self {
            Item::Thought { id, text } => {
                let content = json!([{"type": "reasoning_text", "text": text}]);
                json!({
                    "id": id,
                    "type": "reasoning",
                    "status": status,
                    "summary": [],
                    "content": if is_begun { json!([]) } else { content },
                    "encrypted_content": null,
                })
            }
            Item::Said { id, .. } => json!({
                "id": id,
                "type": "message",
                "status": status,
                "role": "assistant",
                "content": if is_begun { json!([]) } else { json!([self.part()]) },
            }),
            Item::Called { id, call, .. } => json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": call.id,
                "name": call.name,
                "arguments": if is_begun { "" } else { &call.arguments },
            }),
        }
    }

    /// The text inside a message or a thought.
    pub fn part(&self) -> Value {
        match self {
            Item::Said { text, logprobs, .. } => json!({
                "type": "output_text",
                "text": text,
                "annotations": [],
                "logprobs": logprobs,
            }),
            Item::Thought { text, .. } => json!({"type": "reasoning_text", "text": text}),
            Item::Called { .. } => Value::Null,
        }
    }
}

impl Made {
    pub fn new(lease: Lease, has_logprobs: bool) -> Self {
        Made { lease, has_logprobs, items: vec![], end: None }
    }

    /// A whole answer.
    pub fn take_whole(&mut self, whole: Whole, end: End) {
        let Whole { text, thinking, calls, cut, tokens, .. } = whole;
        if !thinking.is_empty() {
            self.items.push(Item::Thought { id: new_id("rs_"), text: thinking });
        }
        if !text.is_empty() || (calls.is_empty() && cut.is_none()) {
            let logprobs = self.logprobs(&tokens);
            self.items.push(Item::Said { id: new_id("msg_"), text, logprobs });
        }
        self.items.extend(calls.into_iter().map(Item::called_whole));
        self.items.extend(cut.map(Item::called));
        self.end = Some(end);
    }

    /// The answer is complete.
    pub fn finish(&mut self, end: End) {
        self.end = Some(end);
    }

    /// How likely tokens were, if that was asked for.
    pub fn logprobs(&self, tokens: &[(u32, lapidary::Logprobs)]) -> Vec<Value> {
        if !self.has_logprobs {
            return vec![];
        }
        let all = shapes::logprobs(self.lease.engine().model(), tokens);
        all.get("content").and_then(Value::as_array).cloned().unwrap_or_default()
    }

    /// Whether it is complete; `None` while it is being made.
    pub fn is_complete(&self) -> Option<bool> {
        self.end.as_ref().map(|end| end.reason != Reason::Length)
    }

    pub fn output(&self) -> Vec<Value> {
        (0..self.items.len())
            .filter_map(|i| Some(self.items.get(i)?.json(self.status(i))))
            .collect()
    }

    /// How an item that grows no more ended: the last one may be cut off.
    pub fn status(&self, index: usize) -> &'static str {
        let is_last = index + 1 == self.items.len();
        let is_whole = match self.items.get(index) {
            Some(Item::Called { is_whole, .. }) => *is_whole,
            _ => !is_last || self.is_complete() != Some(false),
        };
        if is_whole { "completed" } else { "incomplete" }
    }

    pub fn usage(&self) -> Value {
        let Some(end) = &self.end else { return Value::Null };
        let mut usage = Usage::default();
        usage.add(end);
        json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {
                "cached_tokens": usage.cached,
                "cache_write_tokens": usage.prompt.saturating_sub(usage.cached),
            },
            "output_tokens": usage.new,
            "output_tokens_details": {"reasoning_tokens": usage.thinking},
            "total_tokens": usage.prompt + usage.new,
        })
    }

    pub fn timings(&self) -> Option<Value> {
        self.end.as_ref().map(|end| shapes::timings(&end.finish.stats))
    }

    /// The answer as the conversation keeps it: a call that was cut off is none.
    pub fn message(&self) -> Message {
        let mut message = Message::new("assistant");
        for item in &self.items {
            match item {
                Item::Thought { text, .. } => message.thinking = Some(text.clone()),
                Item::Said { text, .. } => message.parts.push(Part::Text(text.clone())),
                Item::Called { is_whole: false, .. } => {}
                Item::Called { call, .. } => message.tool_calls.push(ToolCall {
                    index: call.index,
                    id: call.id.clone(),
                    name: call.name.clone(),
                    arguments: serde_json::from_str(&call.arguments).unwrap_or_default(),
                }),
            }
        }
        message
    }
}
