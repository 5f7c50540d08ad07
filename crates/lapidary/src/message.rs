//! Messages: media stand inside the part that shows them.

use lapidary_program::{Modality, Program};
use lapidary_text::{self as text, Content, FunctionCall, Medium};
use serde_json::{Map, Value};

use crate::data_uri;
use crate::error::{Error, Result};
use crate::event::{Reply, ToolCall};
use crate::media::Media;

/// One message of a conversation.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What is said, shown and played, in order.
    pub parts: Vec<Part>,
    /// What the assistant thought.
    pub thinking: Option<String>,
    /// Tools that the assistant calls.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool answers.
    pub tool_call_id: Option<String>,
    /// The tool's name.
    pub name: Option<String>,
    /// Whatever else the template may know.
    pub extra: Map<String, Value>,
}

/// One part of a message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text(String),
    /// Something that is shown or played.
    Media(Media),
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Part::Text(text.to_string())
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Part::Text(text)
    }
}

impl From<Media> for Part {
    fn from(media: Media) -> Self {
        Part::Media(media)
    }
}

impl Message {
    /// A message without anything in it.
    pub fn new(role: impl Into<String>) -> Self {
        Message { role: role.into(), ..Message::default() }
    }

    /// Instructions.
    pub fn system(text: impl Into<String>) -> Self {
        Self::new("system").text(text)
    }

    /// Something that the user says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::new("user").text(text)
    }

    /// Something that the model said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::new("assistant").text(text)
    }

    /// What a tool returned, as text or JSON text.
    pub fn tool(call: &ToolCall, result: impl Into<String>) -> Self {
        Message {
            tool_call_id: Some(call.id.clone()),
            name: Some(call.name.clone()),
            ..Self::new("tool").text(result)
        }
    }

    /// Adds text.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.part(Part::Text(text.into()))
    }

    /// Adds something that is shown or played.
    pub fn media(self, media: Media) -> Self {
        self.part(Part::Media(media))
    }

    /// Adds a part.
    pub fn part(mut self, part: impl Into<Part>) -> Self {
        self.parts.push(part.into());
        self
    }

    /// A whole answer as the conversation keeps it.
    pub fn of_reply(reply: Reply) -> Self {
        let Reply { text, thinking, tool_calls, .. } = reply;
        let said = !text.is_empty() || tool_calls.is_empty();
        Message {
            parts: said.then_some(Part::Text(text)).into_iter().collect(),
            thinking: (!thinking.is_empty()).then_some(thinking),
            tool_calls,
            ..Self::new("assistant")
        }
    }

    /// A message as an API or a file writes it; `shown` gives what a part of it shows or plays.
    /// Arguments of a call that are not a JSON object are an error.
    pub fn of_text<E: From<Error>>(
        message: text::Message,
        shown: &mut dyn FnMut(&text::Part) -> Result<Media, E>,
    ) -> Result<Self, E> {
        let mut part = |part: text::Part| match part {
            text::Part::Text { text } => Ok(Part::Text(text)),
            media => Ok(Part::Media(shown(&media)?)),
        };
        let call = |(index, call): (usize, text::ToolCall)| {
            let text::FunctionCall { name, arguments } = call.function;
            let arguments = match arguments {
                Value::Object(arguments) => Some(arguments),
                Value::Null => Some(Map::new()),
                Value::String(json) if json.trim().is_empty() => Some(Map::new()),
                Value::String(json) => serde_json::from_str(&json).ok(),
                _ => None,
            };
            let wrong = || {
                Error::argument(format!(
                    "the arguments of the call of `{name}` are not a JSON object"
                ))
            };
            let arguments = arguments.ok_or_else(wrong)?;
            Ok(ToolCall { index, id: call.id.unwrap_or_default(), name, arguments })
        };
        let calls = message.tool_calls.unwrap_or_default().into_iter().enumerate();
        Ok(Message {
            role: message.role,
            parts: match message.content {
                Some(Content::Text(text)) => vec![Part::Text(text)],
                Some(Content::Parts(parts)) => {
                    parts.into_iter().map(&mut part).collect::<Result<_, E>>()?
                }
                None => vec![],
            },
            thinking: message.reasoning,
            tool_calls: calls.map(call).collect::<Result<_, E>>()?,
            tool_call_id: message.tool_call_id,
            name: message.name,
            extra: message.extra,
        })
    }

    /// All of its text.
    pub fn plain_text(&self) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Media(_) => None,
        };
        self.parts.iter().filter_map(text).collect::<Vec<_>>().join("")
    }

    /// The same in the words of the OpenAI API; media are named by their kind only.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self.as_text()).unwrap_or_default()
    }

    /// The same with the bytes of media.
    pub(crate) fn to_full_json(&self) -> Value {
        let mut json = self.to_json();
        let parts = json.get_mut("content").and_then(Value::as_array_mut);
        for (part, json) in self.parts.iter().zip(parts.into_iter().flatten()) {
            if let Part::Media(media) = part
                && let Some(bytes) = media.bytes()
            {
                let kind = media.modality().name();
                let uri = data_uri::encode(&format!("{kind}/*"), &bytes);
                let name = format!("{kind}_url");
                *json = serde_json::json!({"type": name, name: {"url": uri}});
            }
        }
        json
    }

    /// Makes media ready, in place, so that it is done once.
    pub(crate) fn prepare(&mut self, model: &crate::Model) -> Result<()> {
        for part in &mut self.parts {
            if let Part::Media(media) = part {
                *media = media.prepare(model)?;
            }
        }
        Ok(())
    }

    /// What a template sees.
    fn as_text(&self) -> text::Message {
        let part = |part: &Part| match part {
            Part::Text(text) => text::Part::Text { text: text.clone() },
            Part::Media(media) => match media.modality() {
                Modality::Image => text::Part::Image { source: Map::new() },
                Modality::Audio => text::Part::Audio { source: Map::new() },
                Modality::Video => text::Part::Video { source: Map::new() },
            },
        };
        let content = match self.parts.as_slice() {
            [] => None,
            [Part::Text(text)] => Some(Content::Text(text.clone())),
            parts => Some(Content::Parts(parts.iter().map(part).collect())),
        };
        let call = |call: &ToolCall| text::ToolCall {
            id: Some(call.id.clone()),
            kind: "function".to_string(),
            function: FunctionCall {
                name: call.name.clone(),
                arguments: Value::Object(call.arguments.clone()),
            },
        };
        let calls: Vec<text::ToolCall> = self.tool_calls.iter().map(call).collect();
        text::Message {
            role: self.role.clone(),
            content,
            tool_calls: (!calls.is_empty()).then_some(calls),
            tool_call_id: self.tool_call_id.clone(),
            name: self.name.clone(),
            reasoning: self.thinking.clone(),
            extra: self.extra.clone(),
        }
    }
}

/// What a template sees of a conversation, and what it shows and plays, in order.
pub(crate) fn rendered(
    messages: &[Message],
    program: &Program,
) -> Result<(Vec<text::Message>, Vec<Medium>)> {
    let mut media = Vec::new();
    for part in messages.iter().flat_map(|m| &m.parts) {
        if let Part::Media(shown) = part {
            media.push(shown.ready(program)?.medium.clone());
        }
    }
    Ok((messages.iter().map(Message::as_text).collect(), media))
}
