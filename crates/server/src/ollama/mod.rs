//! Ollama's API.

mod chat;
mod embed;
mod generate;
mod manage;
mod messages;
mod models;
mod options;
mod tell;

pub use chat::{__path_chat, ChatRequest, chat, check_chat};
pub use embed::{
    __path_embed, __path_embeddings, EmbedRequest, EmbeddingsRequest, embed, embeddings,
};
pub use generate::{__path_generate, GenerateRequest, check_generate, generate};
pub use manage::{
    __path_copy, __path_create, __path_delete, __path_pull, __path_push, PullRequest, copy, create,
    delete, pull, push,
};
pub use models::{
    __path_ps, __path_show, __path_tags, __path_version, ShowRequest, ps, show, tags, version,
};

use std::sync::Arc;

use serde_json::Value;

use crate::app::App;
use crate::service::{Effort, Entry, Failure, Format, KeepAlive, Result};

/// What is wrong with a field: Ollama's errors are a text alone, so its name begins it.
fn wrong(at: &str, what: impl std::fmt::Display) -> Failure {
    Failure::param(at, format!("{at}: {what}"))
}

/// What a client wrote, short enough to be told.
fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The model of a request; Ollama's requests name one always.
fn entry<'a>(app: &'a App, name: Option<&str>) -> Result<&'a Arc<Entry>> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => app.find(Some(name)).map_err(|e| {
            let message = format!("model '{}' not found", shown(name));
            Failure { message, ..e }
        }),
        None => Err(wrong("model", "a model is named")),
    }
}

/// How long the model stays loaded after this: seconds, or a text like `5m`.
fn keep_alive(given: Option<&Value>) -> Result<Option<KeepAlive>> {
    let text = match given {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(n)) => n.to_string(),
        Some(_) => {
            return Err(wrong("keep_alive", "this is a number of seconds, or a text like `5m`"));
        }
    };
    text.parse().map(Some).map_err(|e: String| wrong("keep_alive", e))
}

/// Whether and how long the model thinks: true, false, a level, or a number of tokens.
fn think(given: Option<&Value>, entry: &Entry) -> Result<Effort> {
    let effort = match given {
        None | Some(Value::Null) => return Ok(Effort::Default),
        Some(Value::Bool(false)) => return Ok(Effort::Off),
        Some(Value::Bool(true)) => Effort::On { budget: None },
        Some(Value::String(level)) => Effort::On {
            budget: match level.as_str() {
                "none" => return Ok(Effort::Off),
                "low" => Some(1024),
                "medium" => Some(4096),
                "high" | "max" => None,
                _ => return Err(wrong("think", "there are `low`, `medium`, `high` and `max`")),
            },
        },
        Some(Value::Number(n)) => match n.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(0) => return Ok(Effort::Off),
            Some(n) => Effort::On { budget: Some(n) },
            None => return Err(wrong("think", format!("{n} is not a number of tokens"))),
        },
        Some(_) => {
            return Err(wrong("think", "this is true, false, a level, or a number of tokens"));
        }
    };
    let format = entry.model().metadata().answer.as_ref();
    match format.is_some_and(|f| f.thinking.is_some()) {
        true => Ok(effort),
        false => Err(wrong("think", format!("\"{}\" does not support thinking", entry.name()))),
    }
}

/// What the text of the answer is held to: `json`, or a schema.
fn format(given: Option<&Value>) -> Result<Format> {
    match given {
        None | Some(Value::Null) => Ok(Format::Text),
        Some(Value::String(word)) if word.is_empty() => Ok(Format::Text),
        Some(Value::String(word)) if word == "json" => Ok(Format::JsonObject),
        Some(schema @ Value::Object(_)) => Ok(Format::JsonSchema(schema.clone())),
        Some(_) => Err(wrong("format", "this is `json`, or a JSON schema")),
    }
}

/// Unloads what was to be kept no longer, without anybody waiting for it.
fn sweep(app: &App) {
    let registry = app.registry().clone();
    tokio::task::spawn_blocking(move || registry.sweep());
}
