use lapidary_program::AnswerFormat;
use serde_json::{Map, Value};

use super::{AnswerParser, CallDelta, Delta};
use crate::chat::{Content, FunctionCall, Message, ToolCall};

/// An answer in its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// What is said to the user.
    pub text: String,
    /// What the model thought.
    pub thinking: String,
    /// The tools that it calls.
    pub calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The tool's name.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

impl Answer {
    /// A whole reply in which markers are spelled out; the token that ended it is left out.
    pub fn read(reply: &str, format: &AnswerFormat) -> Self {
        let mut answer = Answer::default();
        let mut parser = AnswerParser::of_text(format);
        parser.push_text(reply, &mut |delta| answer.push(delta));
        parser.finish(&mut |delta| answer.push(delta));
        answer
    }

    /// Adds the next piece.
    pub fn push(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) => self.text.push_str(text),
            Delta::Thinking(text) => self.thinking.push_str(text),
            Delta::Call(CallDelta::End { name, arguments, .. }) => {
                // The parser writes objects, so there is always one.
                let arguments = serde_json::from_str(arguments).unwrap_or_default();
                self.calls.push(Call { name: name.to_string(), arguments });
            }
            Delta::Call(_) => {}
        }
    }

    /// Its message in the conversation. Calls are named `call_0`, `call_1` and so on after `prefix`.
    pub fn into_message(self, prefix: &str) -> Message {
        let calls = self.calls.into_iter().enumerate().map(|(i, call)| ToolCall {
            id: Some(format!("{prefix}call_{i}")),
            kind: "function".to_string(),
            function: FunctionCall { name: call.name, arguments: Value::Object(call.arguments) },
        });
        let calls: Vec<ToolCall> = calls.collect();
        let said = !self.text.is_empty() || calls.is_empty();
        Message {
            role: "assistant".to_string(),
            content: said.then_some(Content::Text(self.text)),
            tool_calls: (!calls.is_empty()).then_some(calls),
            reasoning: (!self.thinking.is_empty()).then_some(self.thinking),
            ..Message::default()
        }
    }
}
