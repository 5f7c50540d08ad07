//! Chunks of `/v1/chat/completions`.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::shapes::{self, Usage};
use crate::http::{Out, Teller};
use crate::service::{Dialect, Failure, Lease, Piece, new_id, unix};

/// What every chunk and every response begins with.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub warnings: Vec<String>,
}

impl Head {
    pub fn new(prefix: &str, model: &str, warnings: Vec<String>) -> Self {
        let created = unix(SystemTime::now());
        Head { id: new_id(prefix), created, model: model.to_string(), warnings }
    }

    pub fn json(&self, object: &str) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("lapidary-", env!("CARGO_PKG_VERSION")),
        })
    }

    /// Says what was left out, if anything was.
    pub fn warn(&self, body: &mut Value) {
        if !self.warnings.is_empty() {
            body["warnings"] = self.warnings.as_slice().into();
        }
    }
}

/// Tells an answer in chunks.
pub(super) struct ChatTeller {
    head: Head,
    lease: Lease,
    request: Arc<str>,
    n: usize,
    has_usage: bool,
    has_logprobs: bool,
    usage: Usage,
}

impl ChatTeller {
    pub fn new(
        head: Head,
        lease: Lease,
        request: &Arc<str>,
        n: usize,
        has_usage: bool,
        has_logprobs: bool,
    ) -> Self {
        let request = request.clone();
        ChatTeller { head, lease, request, n, has_usage, has_logprobs, usage: Usage::default() }
    }

    fn chunk(&self, index: usize, delta: &Value, finish: Option<&str>) -> Value {
        let mut chunk = self.head.json("chat.completion.chunk");
        let choice =
            json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": finish});
        chunk["choices"] = json!([choice]);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl Teller for ChatTeller {
    fn begin(&mut self, out: &mut Out) {
        for index in 0..self.n {
            let mut chunk = self.chunk(index, &json!({"role": "assistant", "content": ""}), None);
            if index == 0 {
                self.head.warn(&mut chunk);
            }
            out.data(&chunk);
        }
    }

    fn piece(&mut self, answer: usize, piece: Piece, out: &mut Out) {
        let call = |index: usize, call: Value| {
            let mut call = call;
            call["index"] = index.into();
            json!({"tool_calls": [call]})
        };
        let delta = match piece {
            Piece::Text { text, tokens } => {
                let mut chunk = self.chunk(answer, &json!({"content": text}), None);
                if self.has_logprobs {
                    let logprobs = shapes::logprobs(self.lease.engine().model(), &tokens);
                    chunk["choices"][0]["logprobs"] = logprobs;
                }
                return out.data(&chunk);
            }
            Piece::Thinking(text) => json!({"reasoning_content": text}),
            Piece::CallBegin { index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                call(index, json!({"id": id, "type": "function", "function": function}))
            }
            Piece::CallArguments { index, json } => {
                call(index, json!({"function": {"arguments": json}}))
            }
            Piece::CallEnd(_) | Piece::PromptLogprobs(_) | Piece::Embedding(_) => return,
            Piece::Progress { done, total } => {
                let mut chunk = self.chunk(answer, &json!({}), None);
                chunk["prompt_progress"] = json!({"processed": done, "total": total});
                return out.data(&chunk);
            }
            Piece::End(end) => {
                self.usage.add(&end);
                let reason = shapes::finish_reason(end.reason);
                let mut chunk = self.chunk(answer, &json!({}), Some(reason));
                chunk["timings"] = shapes::timings(&end.finish.stats);
                return out.data(&chunk);
            }
        };
        out.data(&self.chunk(answer, &delta, None));
    }

    fn failed(&mut self, failure: &Failure, out: &mut Out) {
        out.data(&failure.body_json(Dialect::OpenAi, &self.request));
    }

    fn done(&mut self, out: &mut Out) {
        if self.has_usage {
            let mut chunk = self.head.json("chat.completion.chunk");
            chunk["choices"] = json!([]);
            chunk["usage"] = self.usage.json();
            out.data(&chunk);
        }
        out.text("data: [DONE]\n\n");
    }
}
