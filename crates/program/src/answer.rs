//! How a model writes its answers: what of them is thinking, what calls tools, and what is text.

use serde::{Deserialize, Serialize};

/// The longest marker, in bytes.
const MAX_MARKER: usize = 64;

/// The longest instruction, in bytes.
const MAX_INSTRUCTION: usize = 1 << 14;

/// How answers are written. Markers are spelled as the tokenizer spells them: one that begins with a
/// special token is found by that token, never by its letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerFormat {
    /// How thinking is set apart; `None` for a model that does not think aloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<ThinkingFormat>,
    /// How tools are called; `None` for a model that can't.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallFormat>,
}

/// How thinking is set apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinkingFormat {
    /// What begins it.
    pub open: String,
    /// What may follow `open` and is no thought itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header: String,
    /// What may stand before `close` and is no thought itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub footer: String,
    /// What ends it.
    pub close: String,
    /// Whether thoughts of earlier turns are left out of the next prompt.
    pub trim_history: bool,
}

/// How tools are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFormat {
    /// What begins a call.
    pub open: String,
    /// What ends it.
    pub close: String,
    /// What stands between.
    pub syntax: CallSyntax,
    /// For models whose template knows no tools: how they are told of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<ToolsInText>,
}

/// How the name and the arguments of a call are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum CallSyntax {
    /// One call, `PREFIX name{key:value,…}`: keys are bare, strings stand between `quote`, all else
    /// is as in JSON.
    Braces {
        /// What stands before the name.
        prefix: String,
        /// What begins and ends a string.
        quote: String,
    },
    /// Calls as code: JSON objects with `name` and `parameters` or `arguments`, or
    /// `name(key=value, …)` with Python's literals; several stand one after another.
    Code,
}

/// Tools in plain text, for templates that know none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsInText {
    /// What stands before the tools' declarations, which are JSON, one on each line. Both stand at the
    /// end of the system message.
    pub instruction: String,
    /// What stands before what a tool returned.
    pub open: String,
    /// What stands after it.
    pub close: String,
}

impl AnswerFormat {
    /// What is wrong with it.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let long = |text: &str| text.len() > MAX_MARKER;
        let marker = |text: &str| !text.is_empty() && !long(text);
        if let Some(t) = &self.thinking
            && (!marker(&t.open) || !marker(&t.close) || long(&t.header) || long(&t.footer))
        {
            return Some("a marker of thinking is empty or too long");
        }
        if let Some(c) = &self.calls {
            let syntax = match &c.syntax {
                CallSyntax::Braces { prefix, quote } => !long(prefix) && marker(quote),
                CallSyntax::Code => true,
            };
            let told = |t: &ToolsInText| {
                t.instruction.len() <= MAX_INSTRUCTION && !long(&t.open) && !long(&t.close)
            };
            if !c.told.as_ref().is_none_or(told) {
                return Some("the words about tools are too long");
            }
            if !marker(&c.open) || !marker(&c.close) || !syntax {
                return Some("a marker of tool calls is empty or too long");
            }
        }
        None
    }
}
