//! Bodies of requests without a server: for whoever tries what a body may hold.

use crate::service::{Limits, Result};
use crate::{anthropic, ollama, openai};

/// Reads and checks a body as its route does before there is a model.
type Check = fn(&[u8], &Limits) -> Result<()>;

/// The routes that take a body whose content is checked, each with its check.
pub const CHECKS: &[(&str, Check)] = &[
    ("/v1/chat/completions", openai::check_chat),
    ("/v1/completions", openai::check_completions),
    ("/v1/embeddings", openai::check_embeddings),
    ("/v1/responses", openai::check_responses),
    ("/v1/messages", anthropic::check_messages),
    ("/api/chat", ollama::check_chat),
    ("/api/generate", ollama::check_generate),
];
