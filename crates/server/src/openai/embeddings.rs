//! `/v1/embeddings`: the mean of the last hidden rows, of length 1.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{completions, fields};
use crate::app::App;
use crate::http::{Caller, Json, read_json, whole};
use crate::service::{Failure, Limits, Result, Wanted, base64};

/// Texts that are computed at once.
const AT_ONCE: usize = 16;

/// A request for what texts are to a model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// A text, texts, token ids, or lists of token ids.
    pub input: Option<Value>,
    /// `float` or `base64`.
    pub encoding_format: Option<String>,
    /// As many as the model has.
    pub dimensions: Option<u64>,
    /// Whatever else there is: refused unless it changes nothing.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// Reads and checks a body as the route does, without a model.
pub fn check_embeddings(body: &[u8], limits: &Limits) -> Result<()> {
    let asked: EmbeddingRequest = read_json(body)?;
    fields::check_rest(&asked.rest)?;
    completions::prompts(asked.input, limits.embeddings).map(drop)
}

/// What texts are to a model, as numbers: the mean of the last hidden rows of their tokens.
#[utoipa::path(post, path = "/v1/embeddings", request_body = EmbeddingRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
))]
pub async fn embeddings(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<EmbeddingRequest>,
) -> Result<Response> {
    fields::check_rest(&asked.rest)?;
    let is_base64 = match asked.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(Failure::param("encoding_format", "there are `float` and `base64`"));
        }
    };
    let inputs = completions::prompts(asked.input, app.limits().embeddings);
    let inputs = inputs.map_err(|failure| failure.at("input"))?;
    let lease = app.lease(asked.model.as_deref()).await?;
    let all = inputs.into_iter().map(|input| Wanted { embeds: true, ..Wanted::new(input) });
    // One that does not fit refuses all, before any is computed.
    let all = app.made(&lease, caller.scope, all.collect()).await;
    let all = all.map_err(|e| match e.param.is_some() {
        true => e.at("input"),
        false => e,
    });
    let mut all = all?.into_iter();
    let at_once = AT_ONCE.min(lease.entry().n_room());
    let (mut data, mut tokens) = (Vec::new(), 0);
    loop {
        let some: Vec<_> = all.by_ref().take(at_once).collect();
        if some.is_empty() {
            break;
        }
        let n = some.len();
        let room = lease.entry().admit(n)?;
        let answers = app.begun(&lease, some, room, &caller.trace).await?;
        tokens += answers.asked.prompt_tokens();
        for (made, _) in whole(answers, n, false).await? {
            let mut made = lapidary::Embedding { values: made.embedding, tokens: 0 };
            made.normalise();
            if let Some(n) = asked.dimensions.filter(|n| *n != made.values.len() as u64) {
                let what = format!("this model has {} dimensions, not {n}", made.values.len());
                return Err(Failure::param("dimensions", what));
            }
            let values = match is_base64 {
                false => json!(made.values),
                true => {
                    let bytes: Vec<u8> = made.values.iter().flat_map(|x| x.to_le_bytes()).collect();
                    base64::encode(&bytes).into()
                }
            };
            data.push(json!({"object": "embedding", "index": data.len(), "embedding": values}));
        }
    }
    Ok(axum::Json(json!({
        "object": "list",
        "data": data,
        "model": lease.entry().name(),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "lapidary": {"pooling": "mean of the last hidden rows", "normalised": true},
    }))
    .into_response())
}
