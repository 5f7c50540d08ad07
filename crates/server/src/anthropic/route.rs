//! `/v1/messages` and `/v1/messages/count_tokens`.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::request::{MessagesRequest, Read};
use super::tell::{Head, MessageTeller};
use crate::app::App;
use crate::http::{Caller, Frames, Json, PING, read_json, tell, whole};
use crate::service::{Effort, Failure, Input, Lease, Limits, Result, Wanted};

/// What is sent after each second of silence.
const SILENCE: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// Reads and checks a body as the route does, without a model.
pub fn check_messages(body: &[u8], limits: &Limits) -> Result<()> {
    read_json::<MessagesRequest>(body)?.read(false)?.wanted.check(limits)
}

/// The next message of a conversation.
#[utoipa::path(post, path = "/v1/messages", request_body = MessagesRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
    (status = 429, body = Value),
    (status = 503, body = Value),
))]
pub async fn messages(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<MessagesRequest>,
) -> Result<Response> {
    let Read { wanted, mut warnings, hides_thoughts } = asked.read(false)?;
    wanted.check(app.limits())?;
    let lease = app.lease(asked.model.as_deref()).await?;
    warnings.extend(no_thoughts(&wanted, &lease));
    let (grows, stop) = (wanted.holds_calls(), wanted.stop.clone());
    let max_tokens = wanted.max_tokens.unwrap_or(usize::MAX);
    let mut answers = app.ask(&lease, caller.scope, wanted, &caller.trace).await?;
    let head =
        Head { hides_thoughts, ..Head::new(lease.entry().name(), warnings, stop, max_tokens) };
    if asked.stream == Some(true) {
        answers.begin(PING).await?;
        let n = answers.asked.prompt_tokens();
        let frames = tell(answers, 1, grows, MessageTeller::new(head, &caller.id, n));
        let frames = Frames::new(Box::pin(frames), Some(Bytes::from_static(SILENCE)));
        return Ok(frames.response("text/event-stream; charset=utf-8"));
    }
    let mut all = whole(answers, 1, false).await?;
    let (whole, end) = all.pop().ok_or_else(|| Failure::internal("an answer without an end"))?;
    Ok(axum::Json(head.whole(whole, &end)).into_response())
}

/// How many tokens a conversation has. Nothing is answered.
#[utoipa::path(post, path = "/v1/messages/count_tokens", request_body = MessagesRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
))]
pub async fn count_tokens(
    State(app): State<App>,
    Json(asked): Json<MessagesRequest>,
) -> Result<Response> {
    let Read { wanted, .. } = asked.read(true)?;
    wanted.check(app.limits())?;
    let entry = app.find(asked.model.as_deref())?.clone();
    app.prepare(move || {
        let model = entry.model();
        let n = wanted.prompted(model, 0)?.1.tokens.len();
        Ok(axum::Json(json!({"input_tokens": n, "context_management": null})).into_response())
    })
    .await
}

/// A thought that was asked of a model that has none.
fn no_thoughts(wanted: &Wanted, lease: &Lease) -> Option<String> {
    let format = lease.engine().metadata().answer.as_ref();
    let thinks = format.is_some_and(|f| f.thinking.is_some());
    let is_asked =
        matches!(&wanted.input, Input::Chat(chat) if matches!(chat.thinking, Effort::On { .. }));
    (is_asked && !thinks).then(|| "this model does not think; it was asked to in vain".to_string())
}
