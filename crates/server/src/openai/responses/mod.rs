//! `/v1/responses`.

mod input;
mod items;
mod request;
mod teller;

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::store::{Stored, size};
use crate::app::App;
use crate::http::{Caller, Json, PING, events, read_json, tell, whole};
use crate::service::{Failure, Limits, Result, Scope};
use items::Made;
pub use request::ResponseRequest;
use request::{Kept, renamed};
use teller::ResponseTeller;

/// Keeps answers that later requests go on from.
#[derive(Clone)]
struct Keeper {
    app: App,
    scope: Scope,
    /// `None` if it shall not be kept.
    asked: Option<Arc<Asked>>,
}

struct Asked {
    messages: Vec<lapidary::Message>,
    input: Box<str>,
    bytes: usize,
}

impl Keeper {
    fn keep(&self, made: &Made, response: &Value) {
        let Some(asked) = &self.asked else { return };
        let Some(id) = response.get("id").and_then(Value::as_str) else { return };
        let mut messages = asked.messages.clone();
        let message = made.message();
        if !message.parts.is_empty() || !message.tool_calls.is_empty() {
            messages.push(message);
        }
        let bytes = asked.bytes + 2 * size(response);
        let (response, input) = (response.to_string().into(), asked.input.clone());
        let stored = Stored { messages, response, input, bytes };
        self.app.responses().put(self.scope, id, stored);
    }
}

/// Reads and checks a body as the route does, without a model.
pub fn check_responses(body: &[u8], limits: &Limits) -> Result<()> {
    read_json::<ResponseRequest>(body)?.wanted(None, &|_| None)?.0.check(limits)
}

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/responses", request_body = ResponseRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
    (status = 429, body = Value),
    (status = 503, body = Value),
))]
pub async fn responses(
    State(app): State<App>,
    caller: Caller,
    Json(mut asked): Json<ResponseRequest>,
) -> Result<Response> {
    let before = match asked.previous_response_id.as_deref() {
        Some(id) => Some(app.responses().get(caller.scope, id).ok_or_else(|| no_response(id))?),
        None => None,
    };
    let item = |id: &str| app.responses().item(caller.scope, id);
    let (wanted, mut shape, kept) = asked.wanted(before.as_ref(), &item)?;
    wanted.check(app.limits()).map_err(renamed)?;
    let lease = app.lease(asked.model.as_deref()).await?;
    shape.of_model(&lease);
    shape.warnings.extend(super::chat::no_thoughts(&wanted, &lease));
    shape.warnings.extend(super::fields::short_context(&wanted, &lease));
    let keeper = Keeper {
        app: app.clone(),
        scope: caller.scope,
        asked: shape.stores.then(|| {
            let Kept { messages, items } = kept;
            let bytes = before.map_or(0, |b| b.bytes) + items.iter().map(size).sum::<usize>() * 2;
            let input = Value::Array(items).to_string().into();
            Arc::new(Asked { messages, input, bytes })
        }),
    };
    let grows = wanted.holds_calls();
    let has_logprobs = wanted.logprobs.is_some();
    let answers = app.ask(&lease, caller.scope, wanted, &caller.trace).await;
    let mut answers = answers.map_err(renamed)?;
    if asked.stream == Some(true) {
        answers.begin(PING).await?;
        let teller = ResponseTeller::new(shape, lease, has_logprobs, keeper);
        return Ok(events(tell(answers, 1, grows, teller)));
    }
    let mut made = Made::new(lease, has_logprobs);
    for (whole, end) in whole(answers, 1, grows).await? {
        made.take_whole(whole, end);
    }
    let response = shape.response(&made);
    keeper.keep(&made, &response);
    Ok(axum::Json(response).into_response())
}

fn no_response(id: &str) -> Failure {
    let id: String = id.chars().take(100).collect();
    let what = format!("there is no response `{id}`; it was not stored, or it is forgotten");
    Failure { code: "previous_response_not_found", ..Failure::not_found(what) }
        .at("previous_response_id")
}

fn found(
    app: &App,
    caller: &Caller,
    id: Result<Path<String>, PathRejection>,
) -> Result<(String, Stored)> {
    let Path(id) = id.map_err(|e| Failure::param("id", e.body_text()))?;
    let stored = app.responses().get(caller.scope, &id);
    let stored =
        stored.ok_or_else(|| Failure { code: "not_found", ..no_response(&id).at("id") })?;
    Ok((id, stored))
}

/// How an answer that was kept is told.
#[derive(Debug, Deserialize, IntoParams)]
pub struct HowTold {
    /// Not supported.
    pub stream: Option<bool>,
}

/// An answer that was kept.
#[utoipa::path(get, path = "/v1/responses/{id}", params(("id" = String, Path), HowTold), responses((status = 200, body = Value), (status = 404, body = Value)))]
pub async fn response(
    State(app): State<App>,
    caller: Caller,
    id: std::result::Result<Path<String>, PathRejection>,
    how: std::result::Result<Query<HowTold>, QueryRejection>,
) -> Result<Response> {
    let Query(how) = how.map_err(|e| Failure::invalid(e.body_text()))?;
    if how.stream == Some(true) {
        let what = "`stream` is not supported: an answer that is kept is told whole";
        return Err(Failure::unsupported("stream", what));
    }
    let (_, stored) = found(&app, &caller, id)?;
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, stored.response.into_string()).into_response())
}

/// Forgets an answer that was kept.
#[utoipa::path(delete, path = "/v1/responses/{id}", params(("id" = String, Path)), responses((status = 200, body = Value), (status = 404, body = Value)))]
pub async fn forget_response(
    State(app): State<App>,
    caller: Caller,
    id: std::result::Result<Path<String>, PathRejection>,
) -> Result<Response> {
    let (id, _) = found(&app, &caller, id)?;
    app.responses().remove(caller.scope, &id);
    Ok(axum::Json(json!({"id": id, "object": "response", "deleted": true})).into_response())
}

/// Which items are told.
#[derive(Debug, Deserialize, IntoParams)]
pub struct Page {
    /// The item after which they begin.
    pub after: Option<String>,
    /// How many, from 1 to 100 [default: 20].
    pub limit: Option<u64>,
    /// `desc`, the last ones first, or `asc` [default: desc].
    pub order: Option<String>,
}

impl Page {
    /// The items of this page, and whether there are more.
    fn of(&self, mut items: Vec<Value>) -> Result<(Vec<Value>, bool)> {
        match self.order.as_deref() {
            None | Some("desc") => items.reverse(),
            Some("asc") => {}
            Some(_) => return Err(Failure::param("order", "there are `asc` and `desc`")),
        }
        let limit = match self.limit.unwrap_or(20) {
            n @ 1..=100 => usize::try_from(n).unwrap_or(20),
            n => return Err(Failure::param("limit", format!("{n} is not within 1 to 100"))),
        };
        if let Some(after) = &self.after {
            let is_it = |item: &Value| item.get("id").is_some_and(|id| id == after.as_str());
            let Some(at) = items.iter().position(is_it) else {
                return Err(Failure::param("after", "there is no such item"));
            };
            items.drain(..=at);
        }
        let has_more = items.len() > limit;
        items.truncate(limit);
        Ok((items, has_more))
    }
}

/// What an answer that was kept answered.
#[utoipa::path(get, path = "/v1/responses/{id}/input_items", params(("id" = String, Path), Page), responses((status = 200, body = Value), (status = 404, body = Value)))]
pub async fn response_input(
    State(app): State<App>,
    caller: Caller,
    id: std::result::Result<Path<String>, PathRejection>,
    page: std::result::Result<Query<Page>, QueryRejection>,
) -> Result<Response> {
    let Query(page) = page.map_err(|e| Failure::invalid(e.body_text()))?;
    let (_, stored) = found(&app, &caller, id)?;
    let items: Vec<Value> = serde_json::from_str(&stored.input)
        .map_err(|e| Failure::internal(format!("a stored response: {e}")))?;
    let (items, has_more) = page.of(items)?;
    let id = |item: Option<&Value>| item.and_then(|i| i.get("id").cloned());
    let (first, last) = (id(items.first()), id(items.last()));
    Ok(axum::Json(json!({
        "object": "list",
        "data": items,
        "first_id": first,
        "last_id": last,
        "has_more": has_more,
    }))
    .into_response())
}

/// How many tokens a request has.
#[utoipa::path(post, path = "/v1/responses/input_tokens", request_body = ResponseRequest, responses((status = 200, body = Value), (status = 400, body = Value)))]
pub async fn response_tokens(
    State(app): State<App>,
    caller: Caller,
    Json(mut asked): Json<ResponseRequest>,
) -> Result<Response> {
    let before = match asked.previous_response_id.as_deref() {
        Some(id) => Some(app.responses().get(caller.scope, id).ok_or_else(|| no_response(id))?),
        None => None,
    };
    let item = |id: &str| app.responses().item(caller.scope, id);
    let (wanted, _, _) = asked.wanted(before.as_ref(), &item)?;
    wanted.check(app.limits()).map_err(renamed)?;
    let entry = app.find(asked.model.as_deref())?.clone();
    app.prepare(move || {
        let model = entry.model();
        let n = wanted.prompted(model, 0).map_err(renamed)?.1.tokens.len();
        let body = json!({"object": "response.input_tokens", "input_tokens": n});
        Ok(axum::Json(body).into_response())
    })
    .await
}
