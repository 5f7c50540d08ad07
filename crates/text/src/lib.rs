//! Everything between messages and tokens, and back: tokenizer, chat template, prompt assembly, stop
//! strings.
//!
//! This room knows programs. It knows no backend and no model family, and whatever it makes may be
//! used from any thread:
//!
//! ```text
//! let prompts = PromptBuilder::new(&program)?;
//! let prompt = prompts.chat_prompt(&ChatInput { messages: &messages, ..ChatInput::default() }, &[])?;
//! ```

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
mod answer;
mod chat;
mod constraint;
mod error;
mod grammar;
mod media;
mod prompt;
mod stop;
mod tokenizer;

pub use answer::{Answer, AnswerParser, Call, CallDelta, Delta};
pub use chat::{
    ChatInput, ChatTemplate, Content, FunctionCall, Message, Part, Rendered, TokenNames, ToolCall,
    load_template,
};
pub use constraint::TokenConstraint;
pub use error::{Error, Result};
pub use grammar::{Constraint, Grammar, GrammarCompiler, Thinking};
pub use media::{Medium, Prompt, SoftInput, SoftRun};
pub use prompt::PromptBuilder;
pub use stop::StopMatcher;
pub use tokenizer::{
    CacheUse, StreamDecoder, Tokenizer, load_tokenizer, load_tokenizer_cached, load_tokenizer_kept,
};
