//! `/api/embed` and the older `/api/embeddings`: the mean of the last hidden rows.

use std::time::Instant;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::options::Options;
use super::{entry, keep_alive, wrong};
use crate::app::App;
use crate::http::{Caller, Json, whole};
use crate::service::{Input, Lease, Result, Wanted};

/// Texts that are computed at once.
const AT_ONCE: usize = 16;

/// A request for what texts are to a model.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbedRequest {
    /// The model.
    pub model: Option<String>,
    /// A text, or texts.
    pub input: Option<Value>,
    /// Whether what is too long is cut, which has to be said: else it is refused.
    pub truncate: Option<bool>,
    /// As many as the model has.
    pub dimensions: Option<u64>,
    /// Of the model; those that choose tokens say nothing here.
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after this.
    pub keep_alive: Option<Value>,
}

/// The same for one text, by its older name.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingsRequest {
    /// The model.
    pub model: Option<String>,
    /// A text.
    pub prompt: Option<String>,
    /// Of the model; those that choose tokens say nothing here.
    pub options: Option<Map<String, Value>>,
    /// How long the model stays loaded after this.
    pub keep_alive: Option<Value>,
}

/// What texts are to a model, as numbers of length 1.
#[utoipa::path(post, path = "/api/embed", request_body = EmbedRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
))]
pub async fn embed(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<EmbedRequest>,
) -> Result<Response> {
    let begun = Instant::now();
    let entry = entry(&app, asked.model.as_deref())?;
    let keep = keep_alive(asked.keep_alive.as_ref())?;
    let mut options = Options::read(asked.options.as_ref())?;
    let texts = texts(asked.input.as_ref(), app.limits().embeddings)?;
    let lease = app.lease(Some(entry.name())).await?;
    let loaded = Instant::now();
    keep.into_iter().for_each(|keep| lease.entry().keep_alive(keep));
    options.check_context(lease.engine().max_context());
    let context = options.context.unwrap_or(usize::MAX).min(lease.engine().max_context());
    let mut inputs = Vec::with_capacity(texts.len());
    for (i, text) in texts.into_iter().enumerate() {
        inputs.push(match asked.truncate {
            Some(true) => {
                let (ids, is_cut) = cut(&app, &lease, text, context).await?;
                if is_cut {
                    let what = format!("input[{i}] was cut to {context} tokens");
                    options.warnings.push(what);
                }
                Input::Ids(ids)
            }
            _ => Input::Text(text),
        });
    }
    let (all, tokens) = embedded(&app, &caller, &lease, inputs, options.context).await?;
    let mut made = Vec::with_capacity(all.len());
    for mut one in all {
        one.normalise();
        if let Some(n) = asked.dimensions.filter(|n| *n != one.values.len() as u64) {
            let what = format!("this model has {} dimensions, not {n}", one.values.len());
            return Err(wrong("dimensions", what));
        }
        made.push(one.values);
    }
    let mut body = json!({
        "model": lease.entry().name(),
        "embeddings": made,
        "total_duration": begun.elapsed().as_nanos() as u64,
        "load_duration": loaded.duration_since(begun).as_nanos() as u64,
        "prompt_eval_count": tokens,
    });
    if !options.warnings.is_empty() {
        body["warnings"] = options.warnings.into();
    }
    Ok(axum::Json(body).into_response())
}

/// What a text is to a model, as numbers of any length.
#[utoipa::path(post, path = "/api/embeddings", request_body = EmbeddingsRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
))]
pub async fn embeddings(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<EmbeddingsRequest>,
) -> Result<Response> {
    let entry = entry(&app, asked.model.as_deref())?;
    let keep = keep_alive(asked.keep_alive.as_ref())?;
    let options = Options::read(asked.options.as_ref())?;
    let lease = app.lease(Some(entry.name())).await?;
    keep.into_iter().for_each(|keep| lease.entry().keep_alive(keep));
    let text = asked.prompt.unwrap_or_default();
    if text.is_empty() {
        return Ok(axum::Json(json!({"embedding": []})).into_response());
    }
    let (mut all, _) =
        embedded(&app, &caller, &lease, vec![Input::Text(text)], options.context).await?;
    let values = all.pop().map(|one| one.values).unwrap_or_default();
    Ok(axum::Json(json!({"embedding": values})).into_response())
}

fn texts(given: Option<&Value>, limit: usize) -> Result<Vec<String>> {
    let not_text = || wrong("input", "this is a text, or a list of texts");
    match given {
        Some(Value::String(text)) if text.is_empty() => Ok(vec![]),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(all)) if all.len() > limit => {
            Err(wrong("input", format!("{} are given and {limit} may be", all.len())))
        }
        Some(Value::Array(all)) => {
            all.iter().map(|t| t.as_str().map(String::from).ok_or_else(not_text)).collect()
        }
        None | Some(Value::Null) => Ok(vec![]),
        Some(_) => Err(not_text()),
    }
}

/// The tokens of a text, as many as there is room for; whether some were cut.
async fn cut(app: &App, lease: &Lease, text: String, context: usize) -> Result<(Vec<u32>, bool)> {
    let entry = lease.entry().clone();
    app.prepare(move || {
        let mut ids = entry.model().tokenise(&text)?;
        let is_cut = ids.len() > context;
        ids.truncate(context);
        Ok((ids, is_cut))
    })
    .await
}

/// Embeddings of inputs, and the number of their tokens.
async fn embedded(
    app: &App,
    caller: &Caller,
    lease: &Lease,
    inputs: Vec<Input>,
    context: Option<usize>,
) -> Result<(Vec<lapidary::Embedding>, usize)> {
    let wanted = |input: Input| Wanted { embeds: true, context, ..Wanted::new(input) };
    // One that does not fit refuses all, before any is computed.
    let all = app.made(lease, caller.scope, inputs.into_iter().map(wanted).collect()).await?;
    let mut all = all.into_iter();
    let at_once = AT_ONCE.min(lease.entry().n_room());
    let (mut made, mut tokens) = (Vec::new(), 0);
    loop {
        let some: Vec<_> = all.by_ref().take(at_once).collect();
        let n = some.len();
        if n == 0 {
            return Ok((made, tokens));
        }
        let room = lease.entry().admit(n)?;
        let answers = app.begun(lease, some, room, &caller.trace).await?;
        tokens += answers.asked.prompt_tokens();
        let some = whole(answers, n, false).await?.into_iter();
        made.extend(some.map(|(one, _)| lapidary::Embedding { values: one.embedding, tokens: 0 }));
    }
}
