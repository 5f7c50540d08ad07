//! `/api/pull`, `/api/push`, `/api/create`, `/api/copy`, `/api/delete`: which models there are is decided
//! when the server starts.
//!
//! Programs pull a model before they use it. One that is served is there already, and they are told so;
//! everything else is refused with what to do.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::entry;
use crate::app::App;
use crate::http::Json;
use crate::service::{Failure, Result};

/// A model that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
pub struct PullRequest {
    /// Its name.
    #[serde(alias = "name")]
    pub model: Option<String>,
    /// Whether the progress is told as it goes, which it is unless this is false.
    pub stream: Option<bool>,
}

/// Says that a model is there. Nothing is fetched.
#[utoipa::path(post, path = "/api/pull", request_body = PullRequest, responses(
    (status = 200, body = Value),
    (status = 404, body = Value),
))]
pub async fn pull(State(app): State<App>, Json(asked): Json<PullRequest>) -> Result<Response> {
    entry(&app, asked.model.as_deref()).map_err(|e| {
        let what = "models are chosen when the server starts: lapidary serve MODEL…";
        Failure { message: format!("{}; {what}", e.message), ..e }
    })?;
    let done = json!({"status": "success"});
    Ok(match asked.stream {
        Some(false) => axum::Json(done).into_response(),
        _ => {
            ([(header::CONTENT_TYPE, "application/x-ndjson")], format!("{done}\n")).into_response()
        }
    })
}

fn refused(what: &str) -> Failure {
    let why = "models are chosen when the server starts: lapidary serve MODEL…";
    Failure { code: "unsupported_operation", ..Failure::invalid(format!("{what}; {why}")) }
}

/// Refused: nothing is sent anywhere.
#[utoipa::path(post, path = "/api/push", responses((status = 400, body = Value)))]
pub async fn push() -> Failure {
    refused("models are not pushed from here")
}

/// Refused: models are made by `lapidary export`.
#[utoipa::path(post, path = "/api/create", responses((status = 400, body = Value)))]
pub async fn create() -> Failure {
    refused("models are not made here, but by `lapidary export`")
}

/// Refused: a model gets a further name when the server starts.
#[utoipa::path(post, path = "/api/copy", responses((status = 400, body = Value)))]
pub async fn copy() -> Failure {
    refused("models are not copied here; NAME=MODEL gives one a name")
}

/// Refused: no file is deleted.
#[utoipa::path(delete, path = "/api/delete", responses((status = 400, body = Value)))]
pub async fn delete() -> Failure {
    refused("models are not deleted here")
}
