//! What is no other's API: health, metrics, properties, tokens.

mod tokens;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use lapidary::Modality;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use crate::app::App;
use crate::routes;
use crate::service::{Failure, ModelState, Result};

pub use tokens::{
    __path_apply_template, __path_detokenize, __path_tokenize, __path_tokenizer_info,
    ApplyTemplate, Detokenize, Tokenize, apply_template, detokenize, tokenize, tokenizer_info,
};

/// Whether the server lives.
#[utoipa::path(get, path = "/health", responses((status = 200, body = Value)))]
pub async fn health() -> Response {
    axum::Json(json!({"status": "ok"})).into_response()
}

/// Whether it can answer now.
#[utoipa::path(get, path = "/ready", responses((status = 200, body = Value), (status = 503, body = Value)))]
pub async fn ready(State(app): State<App>) -> Response {
    let states: Vec<ModelState> = app.registry().entries().iter().map(|e| e.state()).collect();
    let is_loading = states.contains(&ModelState::Loading) && !states.contains(&ModelState::Loaded);
    let why = match () {
        () if app.is_stopping() => Some("stopping"),
        () if !app.stalled().is_empty() => Some("stalled"),
        () if is_loading => Some("loading"),
        () if app.registry().has_failed() => Some("failed"),
        () => None,
    };
    match why {
        Some(why) => {
            let body = axum::Json(json!({"status": why}));
            (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body).into_response()
        }
        None => axum::Json(json!({"status": "ok"})).into_response(),
    }
}

/// What was counted, for Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
pub async fn metrics(State(app): State<App>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.metrics().text(app.registry())).into_response()
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Value)))]
pub async fn openapi() -> Response {
    axum::Json(routes::documented().1).into_response()
}

/// Which model is meant.
#[derive(Debug, Deserialize, IntoParams)]
pub struct Which {
    /// Its name; without one, the first.
    pub model: Option<String>,
}

/// What a model is and takes, in llama-server's words.
#[utoipa::path(get, path = "/props", params(Which), responses((status = 200, body = Value)))]
pub async fn props(
    State(app): State<App>,
    which: Result<Query<Which>, axum::extract::rejection::QueryRejection>,
) -> Result<Response> {
    let Query(which) = which.map_err(|e| Failure::invalid(e.body_text()))?;
    let entry = app.find(which.model.as_deref())?;
    let metadata = entry.model().metadata();
    let known = entry.model().modalities();
    let sampling = lapidary::SamplingParams::of(metadata);
    let plan = entry.plan();
    Ok(axum::Json(json!({
        "default_generation_settings": {
            "n_ctx": entry.context(),
            "params": {
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
            },
        },
        "n_ctx": entry.context(),
        "n_ctx_train": metadata.max_context_len,
        "total_slots": plan.map(|plan| plan.sequences),
        "model_alias": entry.name(),
        "model_name": entry.model().name(),
        "state": entry.state().name(),
        "modalities": {
            "vision": known.contains(&Modality::Image),
            "audio": known.contains(&Modality::Audio),
            "video": known.contains(&Modality::Video),
        },
        "limits": app.limits(),
        "build_info": concat!("lapidary ", env!("CARGO_PKG_VERSION")),
    }))
    .into_response())
}
