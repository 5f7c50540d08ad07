//! Grammars: what an answer may be, as a mask over the next tokens.
//!
//! A [`Grammar`] comes from a request and is compiled once, within limits, on whatever thread asks.
//! The [`Constraint`] that comes out goes along with the answer: before each token it says which ones
//! may come, and it is told which one did.

mod braces;
mod calls;
mod closing;
mod compiler;
mod constraint;
mod keywords;
mod schema;

pub use compiler::GrammarCompiler;
pub use constraint::Constraint;

use serde_json::Value;

/// The most tools of one request.
const MAX_TOOLS: usize = 128;

/// The most calls of one answer.
const MAX_CALLS: usize = 32;

/// The longest grammar, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// Text, as a Lark terminal: anything but special tokens.
const TEXT: &str = "TEXT: /(.|\\n)+/\n";

/// What an answer may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that a schema accepts.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// Text that a regular expression matches as a whole, in the syntax of the crate `regex`.
    Regex(String),
    /// Text of a grammar in llguidance's variant of Lark.
    Lark(String),
    /// Text, and no call of a tool.
    Text,
    /// Calls of tools, as the program's answer format writes them, with arguments that the tools'
    /// schemas accept.
    ///
    /// Where a call is required, and for a tool that is declared `strict`, a schema that no answer can
    /// be held to is an error. Else what of the schema can't be held to is left out.
    ToolCalls {
        /// Declarations, as OpenAI writes them.
        tools: Vec<Value>,
        /// Whether the answer must call a tool; else it may be text instead, or text first.
        required: bool,
        /// Whether there may be several calls.
        parallel: bool,
    },
    /// Calls of tools, or an answer that is held to another grammar.
    CallsOr {
        /// Declarations, as OpenAI writes them.
        tools: Vec<Value>,
        /// Whether there may be several calls.
        parallel: bool,
        /// What the answer is if no tool is called.
        otherwise: Box<Grammar>,
    },
}

/// What may stand before the part of an answer that a grammar is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// Nothing.
    #[default]
    None,
    /// A thought.
    Allowed,
    /// The rest of a thought that the prompt has begun.
    Begun,
}

#[cfg(test)]
mod tests;
