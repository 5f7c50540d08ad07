//! Items of a request, as messages.

use std::collections::HashMap;

use lapidary::{Message, Part, ToolCall};
use serde_json::{Map, Value, json};

use super::super::messages;
use crate::service::{Failure, Result, new_id};

/// What a request gives.
pub(super) struct Given {
    pub messages: Vec<Message>,
    /// The item that each message began with.
    pub from: Vec<usize>,
    /// The items, as they are told again.
    pub items: Vec<Value>,
    /// What was left out.
    pub warnings: Vec<String>,
}

/// What OpenAI's servers did for a model. It is no part of what was said.
const HOSTED: &[&str] = &[
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// Tools that are declared between the items, which some agents do when they need them. Those that are
/// known already are left out.
pub(super) fn further_tools(given: Option<&Value>, known: &[Value]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for item in given.and_then(Value::as_array).into_iter().flatten() {
        let kind = item.get("type").and_then(Value::as_str);
        if !matches!(kind, Some("additional_tools" | "tool_search_output")) {
            continue;
        }
        for tool in item.get("tools").and_then(Value::as_array).into_iter().flatten() {
            let is_it = |other: &Value| other.get("name") == tool.get("name");
            if !known.iter().chain(&all).any(is_it) {
                all.push(tool.clone());
            }
        }
    }
    all
}

impl Given {
    /// Checks that results answer calls and calls have results; `before` is what went before.
    pub fn check(&self, before: &[Message]) -> Result<()> {
        let all: Vec<Message> = before.iter().chain(&self.messages).cloned().collect();
        if all.is_empty() {
            return Err(Failure::param("input", "there must be a text, or at least one item"));
        }
        lapidary::check_history(&all).map_err(|e| match e {
            lapidary::Error::Message { index, what } => {
                let item = index.checked_sub(before.len()).and_then(|i| self.from.get(i));
                let at = item.map_or("input".to_string(), |i| format!("input[{i}]"));
                let what = what.replace("a message of the role `tool`", "a `function_call_output`");
                Failure::param(at, what)
            }
            e => e.into(),
        })
    }
}

/// Messages of what is given: a text, or items. `kept` finds an item that was answered before.
pub(super) fn read(given: &Value, kept: &dyn Fn(&str) -> Option<Value>) -> Result<Given> {
    let items = match given {
        Value::String(text) => {
            let part = json!({"type": "input_text", "text": text});
            vec![json!({"type": "message", "role": "user", "content": [part]})]
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.map(|(i, item)| resolved(item, i, kept)).collect::<Result<_>>()?
        }
        _ => return Err(Failure::param("input", "this is a text, or a list of items")),
    };
    let mut all = Messages::default();
    let mut warnings = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
        if HOSTED.contains(&kind) {
            warnings.push(format!("input[{i}] of the type `{kind}` was left out"));
            continue;
        }
        // Read already.
        if kind == "additional_tools" {
            continue;
        }
        all.take(item, &format!("input[{i}]"))?;
        all.from.resize(all.done.len(), i);
    }
    let items = items.into_iter().map(named).collect();
    Ok(Given { messages: all.done, from: all.from, items, warnings })
}

/// An item, or the one that it refers to.
fn resolved(item: &Value, i: usize, kept: &dyn Fn(&str) -> Option<Value>) -> Result<Value> {
    let kind = item.get("type").filter(|kind| !kind.is_null());
    // A reference is known by its id alone, too.
    let is_bare = kind.is_none() && item.get("role").is_none() && item.get("id").is_some();
    if kind.is_none_or(|kind| kind != "item_reference") && !is_bare {
        return Ok(item.clone());
    }
    let at = format!("input[{i}].id");
    let Some(id) = item.get("id").and_then(Value::as_str) else {
        return Err(Failure::param(at, "this is the id of an item"));
    };
    kept(id).ok_or_else(|| {
        let id: String = id.chars().take(100).collect();
        let what = format!("there is no item `{id}`; it was not stored, or it is forgotten");
        Failure::not_found(what).at(at)
    })
}

/// An item as it is told again: with all fields that strict clients look for.
fn named(mut item: Value) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    let kind = fields.entry("type").or_insert_with(|| "message".into());
    let prefix = match kind.as_str() {
        Some("function_call") => "fc_",
        Some("function_call_output") => "fco_",
        Some("additional_tools") => "at_",
        Some("reasoning") => "rs_",
        _ => "msg_",
    };
    fields.entry("id").or_insert_with(|| new_id(prefix).into());
    fields.entry("status").or_insert_with(|| "completed".into());
    if let Some(Value::String(text)) = fields.get("content") {
        let is_said = fields.get("role").is_some_and(|role| role == "assistant");
        let part = match is_said {
            true => json!({"type": "output_text", "text": text, "annotations": []}),
            false => json!({"type": "input_text", "text": text}),
        };
        fields.insert("content".to_string(), json!([part]));
    }
    item
}

#[derive(Default)]
struct Messages {
    done: Vec<Message>,
    /// The item that each message began with.
    from: Vec<usize>,
    /// A thought whose message has not come.
    thought: Option<String>,
    /// Ids of calls by the ids of their items.
    called: HashMap<String, String>,
}

impl Messages {
    fn take(&mut self, item: &Value, at: &str) -> Result<()> {
        let Some(fields) = item.as_object() else {
            return Err(Failure::param(at, "an item is an object"));
        };
        let text = |name: &str| {
            let text = fields.get(name).and_then(Value::as_str);
            text.ok_or_else(|| Failure::param(format!("{at}.{name}"), "this is a string"))
        };
        match fields.get("type").and_then(Value::as_str).unwrap_or("message") {
            "message" => self.message(item, at),
            kind @ ("function_call" | "custom_tool_call") => {
                let arguments = match kind {
                    "function_call" => {
                        let arguments = fields.get("arguments");
                        messages::object(arguments, &format!("{at}.arguments"))?
                    }
                    // A call of a tool that takes text, from a conversation with another model.
                    _ => Map::from_iter([("input".to_string(), text("input")?.into())]),
                };
                let (id, name) = (text("call_id")?.to_string(), text("name")?.to_string());
                let message = self.assistant();
                let index = message.tool_calls.len();
                message.tool_calls.push(ToolCall { index, id, name, arguments });
                Ok(())
            }
            "function_call_output" | "custom_tool_call_output" => {
                let mut message = Message::new("tool");
                message.tool_call_id = Some(text("call_id")?.to_string());
                message.parts = content(fields.get("output"), "tool", &format!("{at}.output"))?;
                self.done.push(message);
                Ok(())
            }
            // Tools of OpenAI's own models that their clients run, from a conversation with one of them.
            kind @ ("local_shell_call" | "shell_call" | "apply_patch_call") => {
                let what = if kind == "apply_patch_call" { "operation" } else { "action" };
                let Some(Value::Object(arguments)) = fields.get(what) else {
                    return Err(Failure::param(format!("{at}.{what}"), "this is an object"));
                };
                let id = text("call_id")?.to_string();
                if let Ok(item) = text("id") {
                    self.called.insert(item.to_string(), id.clone());
                }
                let name = kind.trim_end_matches("_call").to_string();
                let message = self.assistant();
                let (index, arguments) = (message.tool_calls.len(), arguments.clone());
                message.tool_calls.push(ToolCall { index, id, name, arguments });
                Ok(())
            }
            "local_shell_call_output" | "shell_call_output" | "apply_patch_call_output" => {
                // Some name the call, some its item.
                let id = text("call_id").or_else(|_| text("id"))?;
                let id = self.called.get(id).map_or(id, String::as_str).to_string();
                let said = match fields.get("output") {
                    Some(Value::String(text)) => text.clone(),
                    None | Some(Value::Null) => String::new(),
                    Some(other) => other.to_string(),
                };
                let message = Message::new("tool").text(said);
                self.done.push(Message { tool_call_id: Some(id), ..message });
                Ok(())
            }
            "reasoning" => {
                let texts = |name: &str| {
                    let parts =
                        fields.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
                    let text = |p: &Value| p.get("text").and_then(|t| t.as_str().map(String::from));
                    parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
                };
                let thought = Some(texts("content")).filter(|t| !t.is_empty());
                self.thought = thought.or_else(|| Some(texts("summary")).filter(|t| !t.is_empty()));
                Ok(())
            }
            other => {
                let other: String = other.chars().take(60).collect();
                let what = format!(
                    "items of the type `{other}` are not supported; there are message, \
                     function_call, function_call_output and reasoning"
                );
                Err(Failure::param(format!("{at}.type"), what))
            }
        }
    }

    fn message(&mut self, item: &Value, at: &str) -> Result<()> {
        let role = match item.get("role").and_then(Value::as_str) {
            Some("developer") => "system",
            Some(role @ ("system" | "user" | "assistant")) => role,
            _ => {
                let what = "there are the roles system, developer, user and assistant";
                return Err(Failure::param(format!("{at}.role"), what));
            }
        };
        let parts = content(item.get("content"), role, &format!("{at}.content"))?;
        if role == "assistant" {
            self.assistant().parts.extend(parts);
            return Ok(());
        }
        self.thought = None;
        self.done.push(Message { parts, ..Message::new(role) });
        Ok(())
    }

    /// What the model says, thinks and calls in one turn is one message.
    fn assistant(&mut self) -> &mut Message {
        let thought = self.thought.take();
        let goes_on = self.done.last().is_some_and(|m| m.role == "assistant") && thought.is_none();
        if !goes_on {
            self.done.push(Message { thinking: thought, ..Message::new("assistant") });
        }
        let last = self.done.len() - 1;
        &mut self.done[last]
    }
}

fn content(given: Option<&Value>, role: &str, at: &str) -> Result<Vec<Part>> {
    match given {
        Some(Value::String(text)) => Ok(vec![Part::Text(text.clone())]),
        Some(Value::Array(parts)) => {
            let one = |(i, p): (usize, &Value)| messages::part(p, role, &format!("{at}[{i}]"));
            parts.iter().enumerate().map(one).collect()
        }
        _ => Err(Failure::param(at, "this is a text, or a list of parts")),
    }
}
