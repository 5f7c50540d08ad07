//! Anthropic's API.

mod messages;
mod request;
mod route;
mod tell;
mod tools;

pub use request::MessagesRequest;
pub use route::{__path_count_tokens, __path_messages, check_messages, count_tokens, messages};

use crate::service::Failure;

/// What is wrong with a field: Anthropic's errors have no place for its name, so it begins the message.
fn wrong(at: &str, what: impl std::fmt::Display) -> Failure {
    Failure::param(at, format!("{at}: {what}"))
}

/// What a client wrote, short enough to be told.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}
