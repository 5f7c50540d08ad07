//! `/api/chat`.

use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::options::Options;
use super::tell::{Head, Shape, answer, loaded};
use super::{entry, format, keep_alive, messages, sweep, think, wrong};
use crate::app::App;
use crate::http::{Caller, Json, read_json};
use crate::service::{Chat, Input, KeepAlive, Limits, Result, Wanted};

/// A request for the answer to a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// The model.
    pub model: Option<String>,
    /// The conversation; without one, the model is only loaded.
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<Value>>,
    /// Tools that may be called.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// What the answer is held to: `json`, or a schema.
    pub format: Option<Value>,
    /// How tokens are chosen, and how many.
    pub options: Option<Map<String, Value>>,
    /// Whether the answer is told as it comes, which it is unless this is false.
    pub stream: Option<bool>,
    /// How long the model stays loaded after this.
    pub keep_alive: Option<Value>,
    /// Whether and how long the model thinks: true, false, a level, or a number of tokens.
    pub think: Option<Value>,
    /// Whether log-probabilities are told.
    pub logprobs: Option<bool>,
    /// Of how many likeliest tokens; 0 to 20.
    pub top_logprobs: Option<i64>,
}

impl ChatRequest {
    /// What it wants, but for the thought: whether there is one is the model's to say.
    fn read(&self) -> Result<(Chat, Options)> {
        let mut options = Options::read(self.options.as_ref())?;
        let tools = self.tools.as_deref().unwrap_or_default();
        let chat = Chat {
            messages: messages::conversation(self.messages.as_deref().unwrap_or_default())?,
            tools: messages::tools(tools, &mut options.warnings)?,
            parallel_calls: true,
            format: format(self.format.as_ref())?,
            ..Chat::default()
        };
        Ok((chat, options))
    }
}

/// Reads and checks a body as the route does, without a model.
pub fn check_chat(body: &[u8], limits: &Limits) -> Result<()> {
    let asked: ChatRequest = read_json(body)?;
    keep_alive(asked.keep_alive.as_ref())?;
    let (chat, options) = asked.read()?;
    let mut wanted = Wanted::new(Input::Chat(Box::new(chat)));
    wanted.stop = options.stop;
    wanted.check(limits)
}

/// Whether log-probabilities are told, and of how many tokens.
pub(super) fn logprobs(wanted: Option<bool>, top: Option<i64>) -> Result<Option<usize>> {
    let top = match top.unwrap_or(0) {
        n @ 0..=20 => usize::try_from(n).unwrap_or(0),
        n => return Err(wrong("top_logprobs", format!("{n} is not within 0 to 20"))),
    };
    Ok((wanted == Some(true) || top > 0).then_some(top))
}

/// Answers a conversation.
#[utoipa::path(post, path = "/api/chat", request_body = ChatRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
    (status = 429, body = Value),
    (status = 503, body = Value),
))]
pub async fn chat(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<ChatRequest>,
) -> Result<Response> {
    let begun = Instant::now();
    let entry = entry(&app, asked.model.as_deref())?;
    let keep = keep_alive(asked.keep_alive.as_ref())?;
    let given = asked.messages.as_deref().unwrap_or_default();
    if given.is_empty() {
        return load_only(&app, entry.name(), keep, Shape::Message).await;
    }
    let (mut chat, options) = asked.read()?;
    chat.thinking = think(asked.think.as_ref(), entry)?;
    let mut wanted = Wanted::new(Input::Chat(Box::new(chat)));
    wanted.logprobs = logprobs(asked.logprobs, asked.top_logprobs)?;
    let about = About { keep, begun, streams: asked.stream != Some(false), shape: Shape::Message };
    respond(&app, &caller, entry.name(), wanted, options, about).await
}

/// How a request wants to be answered.
pub(super) struct About {
    pub keep: Option<KeepAlive>,
    pub begun: Instant,
    pub streams: bool,
    pub shape: Shape,
}

/// Loads the model, asks it, and answers.
pub(super) async fn respond(
    app: &App,
    caller: &Caller,
    name: &str,
    mut wanted: Wanted,
    mut options: Options,
    About { keep, begun, streams, shape }: About,
) -> Result<Response> {
    wanted.sampling = std::mem::take(&mut options.sampling);
    wanted.stop = std::mem::take(&mut options.stop);
    wanted.max_tokens = options.max_tokens;
    wanted.context = options.context;
    wanted.check(app.limits())?;
    let lease = app.lease(Some(name)).await?;
    keep.into_iter().for_each(|keep| lease.entry().keep_alive(keep));
    options.check_context(lease.engine().max_context());
    let has_logprobs = wanted.logprobs.is_some();
    let (warnings, loaded) = (options.warnings, Instant::now());
    let head = Head { shape, lease, warnings, begun, loaded, has_logprobs };
    answer(app, caller, head, wanted, streams).await
}

/// A request without anything to answer loads the model, or lets go of it if it is kept for no time.
pub(super) async fn load_only(
    app: &App,
    name: &str,
    keep: Option<KeepAlive>,
    shape: Shape,
) -> Result<Response> {
    if let Some(KeepAlive::For(time)) = keep
        && time.is_zero()
    {
        app.find(Some(name))?.keep_alive(KeepAlive::For(time));
        sweep(app);
        return Ok(loaded(shape, name, true));
    }
    let lease = app.lease(Some(name)).await?;
    keep.into_iter().for_each(|keep| lease.entry().keep_alive(keep));
    Ok(loaded(shape, name, false))
}
