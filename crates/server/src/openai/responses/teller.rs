//! Events of `/v1/responses`.

use serde_json::{Value, json};

use super::Keeper;
use super::items::{Item, Made};
use super::request::Shape;
use crate::http::{Out, Teller};
use crate::service::{Call, Failure, Lease, Piece};

/// Tells an answer in events. Every event has all fields of its kind, because strict clients look.
pub(super) struct ResponseTeller {
    shape: Shape,
    made: Made,
    keeper: Keeper,
    number: u64,
    /// Whether the last item is still growing.
    is_open: bool,
}

impl ResponseTeller {
    pub fn new(shape: Shape, lease: Lease, has_logprobs: bool, keeper: Keeper) -> Self {
        let made = Made::new(lease, has_logprobs);
        ResponseTeller { shape, made, keeper, number: 0, is_open: false }
    }

    fn event(&mut self, kind: &str, mut data: Value, out: &mut Out) {
        data["type"] = kind.into();
        data["sequence_number"] = self.number.into();
        self.number += 1;
        out.event(kind, &data);
    }

    /// Which item is growing.
    fn at(&self) -> Value {
        let index = self.made.items.len().saturating_sub(1);
        json!({"output_index": index, "item_id": self.made.items.last().map(Item::id)})
    }

    fn with(&self, more: Value) -> Value {
        let mut data = self.at();
        if let (Some(data), Value::Object(more)) = (data.as_object_mut(), more) {
            data.extend(more);
        }
        data
    }

    fn open(&mut self, item: Item, out: &mut Out) {
        self.close(out);
        let index = self.made.items.len();
        let shown = item.json("in_progress");
        let part = item.part();
        self.made.items.push(item);
        self.is_open = true;
        let data = json!({"output_index": index, "item": shown});
        self.event("response.output_item.added", data, out);
        if !part.is_null() {
            let data = self.with(json!({"content_index": 0, "part": part}));
            self.event("response.content_part.added", data, out);
        }
    }

    /// Ends the item that is growing, if one is.
    fn close(&mut self, out: &mut Out) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let Some(item) = self.made.items.last() else { return };
        let status = self.made.status(self.made.items.len().saturating_sub(1));
        let (part, shown) = (item.part(), item.json(status));
        let done = match item {
            Item::Thought { text, .. } => {
                let data = json!({"content_index": 0, "text": text});
                ("response.reasoning_text.done", data)
            }
            Item::Said { text, logprobs, .. } => {
                let data = json!({"content_index": 0, "text": text, "logprobs": logprobs});
                ("response.output_text.done", data)
            }
            Item::Called { call, .. } => {
                let data = json!({"name": call.name, "arguments": call.arguments});
                ("response.function_call_arguments.done", data)
            }
        };
        let data = self.with(done.1);
        self.event(done.0, data, out);
        if !part.is_null() {
            let data = self.with(json!({"content_index": 0, "part": part}));
            self.event("response.content_part.done", data, out);
        }
        let index = self.made.items.len().saturating_sub(1);
        let data = json!({"output_index": index, "item": shown});
        self.event("response.output_item.done", data, out);
    }

    fn last_is(&self, is_it: impl Fn(&Item) -> bool) -> bool {
        self.is_open && self.made.items.last().is_some_and(is_it)
    }
}

impl Teller for ResponseTeller {
    fn begin(&mut self, out: &mut Out) {
        let response = self.shape.response(&self.made);
        self.event("response.created", json!({"response": response}), out);
        self.event("response.in_progress", json!({"response": response}), out);
    }

    fn piece(&mut self, _: usize, piece: Piece, out: &mut Out) {
        match piece {
            Piece::Thinking(more) => {
                if !self.last_is(|item| matches!(item, Item::Thought { .. })) {
                    self.open(Item::thought(), out);
                }
                if let Some(Item::Thought { text, .. }) = self.made.items.last_mut() {
                    text.push_str(&more);
                }
                let data = self.with(json!({"content_index": 0, "delta": more}));
                self.event("response.reasoning_text.delta", data, out);
            }
            Piece::Text { text: more, tokens } => {
                if !self.last_is(|item| matches!(item, Item::Said { .. })) {
                    self.open(Item::said(), out);
                }
                let new = self.made.logprobs(&tokens);
                if let Some(Item::Said { text, logprobs, .. }) = self.made.items.last_mut() {
                    text.push_str(&more);
                    logprobs.extend(new.clone());
                }
                let data = json!({"content_index": 0, "delta": more, "logprobs": new});
                let data = self.with(data);
                self.event("response.output_text.delta", data, out);
            }
            Piece::CallBegin { index, id, name } => {
                let call = Call { index, id, name, arguments: String::new() };
                self.open(Item::called(call), out);
            }
            Piece::CallArguments { json, .. } => {
                if let Some(Item::Called { call, .. }) = self.made.items.last_mut() {
                    call.arguments.push_str(&json);
                }
                let data = self.with(json!({"delta": json}));
                self.event("response.function_call_arguments.delta", data, out);
            }
            Piece::CallEnd(whole) => {
                if let Some(Item::Called { call, is_whole, .. }) = self.made.items.last_mut() {
                    call.arguments = whole.arguments;
                    *is_whole = true;
                }
                self.close(out);
            }
            Piece::End(end) => {
                if self.made.items.is_empty() {
                    self.open(Item::said(), out);
                }
                self.made.finish(end);
                self.close(out);
            }
            Piece::Progress { .. } | Piece::PromptLogprobs(_) | Piece::Embedding(_) => {}
        }
    }

    fn failed(&mut self, failure: &Failure, out: &mut Out) {
        let mut response = self.shape.response(&self.made);
        response["status"] = "failed".into();
        let code = if failure.status.is_server_error() { "server_error" } else { failure.code };
        response["error"] = json!({"code": code, "message": failure.message});
        self.event("response.failed", json!({"response": response}), out);
    }

    fn done(&mut self, out: &mut Out) {
        let response = self.shape.response(&self.made);
        self.keeper.keep(&self.made, &response);
        let kind = match self.made.is_complete() {
            Some(false) => "response.incomplete",
            _ => "response.completed",
        };
        self.event(kind, json!({"response": response}), out);
    }
}
