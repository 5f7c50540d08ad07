//! The models that are served, as an object that OpenAI's and Anthropic's clients both take.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::App;
use crate::service::{Entry, Failure, Result, rfc3339, unix};

/// All models.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, body = Value)))]
pub async fn models(State(app): State<App>) -> Response {
    let all: Vec<Value> = app.registry().entries().iter().map(|entry| shown(entry)).collect();
    let id = |model: Option<&Value>| model.and_then(|m| m.get("id").cloned());
    axum::Json(json!({
        "object": "list",
        "first_id": id(all.first()),
        "last_id": id(all.last()),
        "has_more": false,
        "data": all,
    }))
    .into_response()
}

/// One model.
#[utoipa::path(get, path = "/v1/models/{id}", params(("id" = String, Path)), responses((status = 200, body = Value), (status = 404, body = Value)))]
pub async fn model(
    State(app): State<App>,
    id: std::result::Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> Result<Response> {
    let Path(id) = id.map_err(|e| Failure::param("id", e.body_text()))?;
    Ok(axum::Json(shown(app.find(Some(&id))?)).into_response())
}

/// One model whose name has a slash, which clients write as it is.
#[utoipa::path(get, path = "/v1/models/{owner}/{id}", params(("owner" = String, Path), ("id" = String, Path)), responses((status = 200, body = Value), (status = 404, body = Value)))]
pub async fn model_of(
    State(app): State<App>,
    name: std::result::Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
) -> Result<Response> {
    let Path((owner, id)) = name.map_err(|e| Failure::param("id", e.body_text()))?;
    Ok(axum::Json(shown(app.find(Some(&format!("{owner}/{id}")))?)).into_response())
}

fn shown(entry: &Entry) -> Value {
    let model = entry.model();
    let metadata = model.metadata();
    let context = entry.context();
    let taken = model.modalities();
    let mut modalities = vec!["text"];
    modalities.extend(taken.iter().map(|m| m.name()));
    let format = metadata.answer.as_ref();
    let thinks = format.is_some_and(|f| f.thinking.is_some());
    let calls = format.is_some_and(|f| f.calls.is_some());
    let plan = entry.plan();
    let memory = plan.as_ref().map(|plan| plan.memory.total());
    json!({
        "id": entry.name(),
        "object": "model",
        "created": unix(entry.created()),
        "owned_by": "lapidary",
        // What Anthropic's clients look for.
        "type": "model",
        "display_name": metadata.name,
        "created_at": rfc3339(entry.created()),
        "lifecycle": "active",
        "max_input_tokens": context.saturating_sub(1),
        "max_tokens": context.saturating_sub(1),
        // vLLM's name, and the one that most others use.
        "max_model_len": context,
        "context_length": context,
        // llama-server's.
        "meta": {
            "n_ctx": context,
            "n_ctx_train": metadata.max_context_len,
            "n_vocab": metadata.vocab_size,
            "n_params": model.program().n_params(),
            "size": model.program().weight_bytes(),
        },
        "lapidary": {
            "state": entry.state().name(),
            "modalities": modalities,
            "context_length": context,
            "memory_bytes": memory,
            "thinking": thinks,
            "tools": calls,
            "error": entry.failure().map(|f| f.message),
        },
    })
}
