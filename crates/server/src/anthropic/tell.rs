//! Events of `/v1/messages`, and the whole message.

use std::sync::Arc;

use lapidary::Stats;
use serde_json::{Map, Value, json};

use crate::http::{Out, Teller, Whole};
use crate::service::{Call, Dialect, End, Failure, Piece, Reason, new_id};

/// What a thought is signed with. Nobody checks it, but clients want one.
const SIGNATURE: &str = "bGFwaWRhcnk=";

/// What every message begins with.
pub(super) struct Head {
    pub id: String,
    pub model: String,
    pub warnings: Vec<String>,
    pub stop: Vec<String>,
    pub max_tokens: usize,
    /// Whether thoughts are left out of what is told.
    pub hides_thoughts: bool,
}

impl Head {
    pub fn new(model: &str, warnings: Vec<String>, stop: Vec<String>, max_tokens: usize) -> Self {
        let (id, model) = (new_id("msg_"), model.to_string());
        Head { id, model, warnings, stop, max_tokens, hides_thoughts: false }
    }

    fn message(&self, content: &[Value], reason: Value, usage: Value) -> Value {
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": null,
            "stop_details": null,
            "container": null,
            "usage": usage,
        });
        if !self.warnings.is_empty() {
            message["warnings"] = self.warnings.as_slice().into();
        }
        message
    }

    /// Why the answer ended, and which string ended it.
    fn reason(&self, end: &End) -> (&'static str, Value) {
        match end.reason {
            Reason::Stop => ("end_turn", Value::Null),
            Reason::StopString(i) => {
                ("stop_sequence", self.stop.get(i).map_or(Value::Null, |s| s.as_str().into()))
            }
            Reason::Calls => ("tool_use", Value::Null),
            Reason::Length if end.finish.stats.new_tokens < self.max_tokens => {
                ("model_context_window_exceeded", Value::Null)
            }
            Reason::Length => ("max_tokens", Value::Null),
        }
    }

    /// The whole message.
    pub fn whole(&self, whole: Whole, end: &End) -> Value {
        let mut content = Vec::new();
        if !whole.thinking.is_empty() {
            let thought = if self.hides_thoughts { "" } else { &whole.thinking };
            content.push(json!({
                "type": "thinking", "thinking": thought, "signature": SIGNATURE,
            }));
        }
        if !whole.text.is_empty() {
            content.push(json!({"type": "text", "text": whole.text}));
        }
        content.extend(whole.calls.iter().map(used));
        let (reason, stop) = self.reason(end);
        let usage = usage(&end.finish.stats, end.thinking_tokens);
        let mut message = self.message(&content, reason.into(), usage);
        message["stop_sequence"] = stop;
        message
    }
}

/// Tokens that were read anew, found again, and said.
fn usage(stats: &Stats, thinking_tokens: usize) -> Value {
    let Stats { prompt_tokens, reused_tokens, new_tokens, .. } = *stats;
    json!({
        "input_tokens": prompt_tokens.saturating_sub(reused_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reused_tokens,
        "output_tokens": new_tokens,
        "output_tokens_details": {"thinking_tokens": thinking_tokens},
        "cache_creation": null,
        "inference_geo": null,
        "server_tool_use": null,
        "service_tier": "standard",
    })
}

/// Its ids begin otherwise than OpenAI's.
fn id(id: &str) -> String {
    id.strip_prefix("call_").map_or_else(|| id.to_string(), |rest| format!("toolu_{rest}"))
}

fn used(call: &Call) -> Value {
    let input: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
    let caller = json!({"type": "direct"});
    json!({"type": "tool_use", "id": id(&call.id), "name": call.name, "input": input, "caller": caller})
}

/// Tells a message as it comes.
pub(super) struct MessageTeller {
    head: Head,
    request: Arc<str>,
    /// Tokens of the prompt.
    prompt_tokens: usize,
    /// The block that is open, by its number.
    open: Option<(usize, Kind)>,
    n_blocks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    Call,
}

impl MessageTeller {
    pub fn new(head: Head, request: &Arc<str>, prompt_tokens: usize) -> Self {
        MessageTeller { head, request: request.clone(), prompt_tokens, open: None, n_blocks: 0 }
    }

    fn close(&mut self, out: &mut Out) {
        let Some((index, kind)) = self.open.take() else { return };
        if kind == Kind::Thinking {
            delta(index, &json!({"type": "signature_delta", "signature": SIGNATURE}), out);
        }
        out.event("content_block_stop", &json!({"type": "content_block_stop", "index": index}));
    }

    /// The block that more of this kind belongs to.
    fn block(&mut self, kind: Kind, begin: Value, out: &mut Out) -> usize {
        if let Some((index, open)) = self.open
            && open == kind
            && kind != Kind::Call
        {
            return index;
        }
        self.close(out);
        let index = self.n_blocks;
        self.n_blocks += 1;
        self.open = Some((index, kind));
        let begin = json!({"type": "content_block_start", "index": index, "content_block": begin});
        out.event("content_block_start", &begin);
        index
    }
}

fn delta(index: usize, delta: &Value, out: &mut Out) {
    let event = json!({"type": "content_block_delta", "index": index, "delta": delta});
    out.event("content_block_delta", &event);
}

impl Teller for MessageTeller {
    fn begin(&mut self, out: &mut Out) {
        let stats = Stats { prompt_tokens: self.prompt_tokens, ..Stats::default() };
        let message = self.head.message(&[], Value::Null, usage(&stats, 0));
        out.event("message_start", &json!({"type": "message_start", "message": message}));
        out.event("ping", &json!({"type": "ping"}));
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut Out) {
        match piece {
            Piece::Text { text, .. } => {
                let begin = json!({"type": "text", "text": ""});
                let index = self.block(Kind::Text, begin, out);
                delta(index, &json!({"type": "text_delta", "text": text}), out);
            }
            Piece::Thinking(text) => {
                let begin = json!({"type": "thinking", "thinking": "", "signature": ""});
                let index = self.block(Kind::Thinking, begin, out);
                if self.head.hides_thoughts {
                    return;
                }
                delta(index, &json!({"type": "thinking_delta", "thinking": text}), out);
            }
            Piece::CallBegin { id: given, name, .. } => {
                let begin = json!({
                    "type": "tool_use", "id": id(&given), "name": name, "input": {},
                    "caller": {"type": "direct"},
                });
                self.block(Kind::Call, begin, out);
            }
            Piece::CallArguments { json: more, .. } => {
                if let Some((index, Kind::Call)) = self.open {
                    delta(index, &json!({"type": "input_json_delta", "partial_json": more}), out);
                }
            }
            Piece::CallEnd(_) => self.close(out),
            Piece::Progress { .. } | Piece::PromptLogprobs(_) | Piece::Embedding(_) => {}
            Piece::End(end) => {
                self.close(out);
                let (reason, stop) = self.head.reason(&end);
                out.event(
                    "message_delta",
                    &json!({
                        "type": "message_delta",
                        "delta": {
                            "stop_reason": reason,
                            "stop_sequence": stop,
                            "stop_details": null,
                            "container": null,
                        },
                        "usage": usage(&end.finish.stats, end.thinking_tokens),
                    }),
                );
            }
        }
    }

    fn failed(&mut self, failure: &Failure, out: &mut Out) {
        out.event("error", &failure.body_json(Dialect::Anthropic, &self.request));
    }

    fn done(&mut self, out: &mut Out) {
        out.event("message_stop", &json!({"type": "message_stop"}));
    }
}
