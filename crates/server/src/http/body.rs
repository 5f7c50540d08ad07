//! Bodies of requests: bounded in size and time, and JSON with the field named that is wrong.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::service::{Failure, Limits, Result};

/// A body of JSON.
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &App) -> Result<Self> {
        let bytes = read(request, app.limits()).await?;
        read_json(&bytes).map(Json)
    }
}

/// Reads a body, as long as it may be and no longer than it may take.
async fn read(request: Request, limits: &Limits) -> Result<Bytes> {
    let limit = limits.body_bytes;
    let too_large =
        || Failure::too_large(format!("the request's body is longer than {limit} bytes"));
    let told = request.headers().get(header::CONTENT_LENGTH);
    let told = told.and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|n| n > limit as u64) {
        return Err(too_large());
    }
    let time = Duration::from_secs(limits.body_seconds);
    let all = collect(request.into_body(), limit, too_large);
    tokio::time::timeout(time, all).await.unwrap_or(Err(Failure::slow_body(limits.body_seconds)))
}

async fn collect(mut body: Body, limit: usize, too_large: impl Fn() -> Failure) -> Result<Bytes> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Failure::body(None, "the request's body ended too early"))?;
        if let Ok(data) = frame.into_data() {
            if all.len() + data.len() > limit {
                return Err(too_large());
            }
            all.extend_from_slice(&data);
        }
    }
    Ok(all.freeze())
}

/// Reads JSON; a failure names the field.
pub fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value: T = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let path = e.path().to_string();
        let inner = e.into_inner();
        let what = match inner.classify() {
            serde_json::error::Category::Data => {
                format!("the request is not as it should be: {inner}")
            }
            _ => format!("the request is not JSON: {inner}"),
        };
        let param = (path != "." && !path.is_empty() && !path.contains('?')).then_some(path);
        Failure::body(param, what)
    })?;
    json.end().map_err(|e| Failure::body(None, format!("the request is not JSON: {e}")))?;
    Ok(value)
}
