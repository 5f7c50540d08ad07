//! Lines of `/api/chat` and `/api/generate`, and the whole answer.

use std::time::{Instant, SystemTime};

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use lapidary::Stats;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::http::{Caller, Frames, Out, PING, Teller, Whole, tell, whole};
use crate::service::{Call, Dialect, End, Failure, Lease, Piece, Reason, Result, Wanted, rfc3339};

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// As a message.
    Message,
    /// As a text.
    Text,
}

/// What every line begins with.
pub(super) struct Head {
    pub shape: Shape,
    pub lease: Lease,
    pub warnings: Vec<String>,
    pub begun: Instant,
    /// When the model was there.
    pub loaded: Instant,
    pub has_logprobs: bool,
}

impl Head {
    fn line(&self, text: &str, more: Map<String, Value>) -> Value {
        let name = self.lease.entry().name();
        let created = rfc3339(SystemTime::now());
        match self.shape {
            Shape::Message => {
                let mut message = json!({"role": "assistant", "content": text});
                merge(&mut message, more);
                json!({"model": name, "created_at": created, "message": message, "done": false})
            }
            Shape::Text => {
                let mut line =
                    json!({"model": name, "created_at": created, "response": text, "done": false});
                merge(&mut line, more);
                line
            }
        }
    }

    fn said(&self, text: &str) -> Value {
        self.line(text, Map::new())
    }

    fn thought(&self, text: &str) -> Value {
        self.line("", Map::from_iter([("thinking".to_string(), text.into())]))
    }

    fn called(&self, calls: &[Call]) -> Value {
        let calls: Vec<Value> = calls.iter().map(called).collect();
        self.line("", Map::from_iter([("tool_calls".to_string(), calls.into())]))
    }

    /// What the last line says besides.
    fn end(&self, end: &End, line: &mut Value) {
        let nanos = |seconds: f64| (seconds * 1e9) as u64;
        let since = |from: Instant, to: Instant| to.duration_since(from).as_nanos() as u64;
        let Stats { prompt_tokens, new_tokens, prefill_s, encode_s, decode_s, .. } =
            end.finish.stats;
        line["done"] = true.into();
        line["done_reason"] = match end.reason {
            Reason::Length => "length",
            Reason::Stop | Reason::StopString(_) | Reason::Calls => "stop",
        }
        .into();
        line["total_duration"] = since(self.begun, Instant::now()).into();
        line["load_duration"] = since(self.begun, self.loaded).into();
        line["prompt_eval_count"] = prompt_tokens.into();
        line["prompt_eval_duration"] = nanos(prefill_s + encode_s).into();
        line["prompt_cached_count"] = end.finish.stats.reused_tokens.into();
        line["eval_count"] = new_tokens.into();
        line["eval_duration"] = nanos(decode_s).into();
        if !self.warnings.is_empty() {
            line["warnings"] = self.warnings.as_slice().into();
        }
    }

    fn logprobs(&self, tokens: &[(u32, lapidary::Logprobs)], line: &mut Value) {
        if self.has_logprobs {
            let told = crate::openai::logprobs(self.lease.engine().model(), tokens);
            line["logprobs"] = told["content"].clone();
        }
    }

    fn whole(&self, whole: Whole, end: &End) -> Value {
        let mut more = Map::new();
        if !whole.thinking.is_empty() {
            more.insert("thinking".into(), whole.thinking.into());
        }
        if !whole.calls.is_empty() {
            more.insert("tool_calls".into(), whole.calls.iter().map(called).collect());
        }
        let mut line = self.line(&whole.text, more);
        self.logprobs(&whole.tokens, &mut line);
        self.end(end, &mut line);
        line
    }
}

fn merge(into: &mut Value, more: Map<String, Value>) {
    if let Value::Object(into) = into {
        into.extend(more);
    }
}

/// Ollama writes arguments as an object.
fn called(call: &Call) -> Value {
    let arguments: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
    let function = json!({"index": call.index, "name": call.name, "arguments": arguments});
    json!({"id": call.id, "function": function})
}

/// Tells an answer line by line.
struct LineTeller {
    head: Head,
}

impl Teller for LineTeller {
    fn begin(&mut self, _: &mut Out) {}

    fn piece(&mut self, _: usize, piece: Piece, out: &mut Out) {
        match piece {
            Piece::Text { text, tokens } => {
                let mut line = self.head.said(&text);
                self.head.logprobs(&tokens, &mut line);
                out.line(&line);
            }
            Piece::Thinking(text) => out.line(&self.head.thought(&text)),
            Piece::CallEnd(call) => out.line(&self.head.called(&[call])),
            Piece::End(end) => {
                let mut line = self.head.said("");
                self.head.end(&end, &mut line);
                out.line(&line);
            }
            Piece::CallBegin { .. }
            | Piece::CallArguments { .. }
            | Piece::Progress { .. }
            | Piece::PromptLogprobs(_)
            | Piece::Embedding(_) => {}
        }
    }

    fn failed(&mut self, failure: &Failure, out: &mut Out) {
        out.line(&failure.body_json(Dialect::Ollama, ""));
    }

    fn done(&mut self, _: &mut Out) {}
}

/// Asks, and answers as it comes or whole.
pub(super) async fn answer(
    app: &App,
    caller: &Caller,
    head: Head,
    wanted: Wanted,
    streams: bool,
) -> Result<Response> {
    let mut answers = app.ask(&head.lease, caller.scope, wanted, &caller.trace).await?;
    if streams {
        answers.begin(PING).await?;
        // Nothing is said while nothing comes, which clients take for life.
        let silence = Bytes::from(format!("{}\n", head.said("")));
        let frames = tell(answers, 1, false, LineTeller { head });
        return Ok(Frames::new(Box::pin(frames), Some(silence)).response("application/x-ndjson"));
    }
    let mut all = whole(answers, 1, false).await?;
    let (whole, end) = all.pop().ok_or_else(|| Failure::internal("an answer without an end"))?;
    Ok(axum::Json(head.whole(whole, &end)).into_response())
}

/// The answer to a request that only loads the model, or lets go of it.
pub(super) fn loaded(shape: Shape, name: &str, is_unloaded: bool) -> Response {
    let mut line = json!({
        "model": name,
        "created_at": rfc3339(SystemTime::now()),
        "done": true,
        "done_reason": if is_unloaded { "unload" } else { "load" },
    });
    match shape {
        Shape::Message => line["message"] = json!({"role": "assistant", "content": ""}),
        Shape::Text => line["response"] = "".into(),
    }
    axum::Json(line).into_response()
}
