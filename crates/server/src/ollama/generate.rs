//! `/api/generate`.

use std::time::Instant;

use axum::extract::State;
use axum::response::Response;
use lapidary::{Message, Part};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::chat::{About, load_only, logprobs, respond};
use super::options::Options;
use super::tell::Shape;
use super::{entry, format, keep_alive, messages, think, wrong};
use crate::app::App;
use crate::http::{Caller, Json, read_json};
use crate::service::{Chat, Effort, Failure, Format, Input, Limits, Result, Wanted};

/// A request for the answer to a prompt.
#[derive(Debug, Deserialize, ToSchema)]
pub struct GenerateRequest {
    /// The model.
    pub model: Option<String>,
    /// What is asked; without anything, the model is only loaded.
    pub prompt: Option<String>,
    /// Not supported: these models fill no gaps.
    pub suffix: Option<String>,
    /// Images in base64.
    pub images: Option<Value>,
    /// Instructions.
    pub system: Option<String>,
    /// Not supported: the model's own is used.
    pub template: Option<String>,
    /// Not supported: send the conversation to `/api/chat`.
    pub context: Option<Vec<i64>>,
    /// Whether the prompt is continued as it is, without a template.
    pub raw: Option<bool>,
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

impl GenerateRequest {
    fn check(&self) -> Result<()> {
        let refused = |name: &'static str, what: &str| {
            Err(Failure::unsupported(name, format!("{name}: not supported: {what}")))
        };
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
        if is_given(&self.suffix) {
            return refused("suffix", "these models go on from a text, they fill no gaps");
        }
        if is_given(&self.template) {
            return refused("template", "the model's own template is used");
        }
        if self.context.as_ref().is_some_and(|ids| !ids.is_empty()) {
            return refused("context", "send the conversation to /api/chat");
        }
        Ok(())
    }

    fn input(&self, prompt: &str, format: Format, thinking: Effort) -> Result<Input> {
        let shown = messages::images(self.images.as_ref(), "images")?;
        if self.raw == Some(true) {
            if !shown.is_empty() {
                return Err(wrong("images", "a raw prompt shows none"));
            }
            if format != Format::Text {
                return Err(wrong("format", "a raw prompt is held to none"));
            }
            if self.system.as_ref().is_some_and(|text| !text.is_empty()) {
                return Err(wrong("system", "a raw prompt has no instructions but its own"));
            }
            if matches!(thinking, Effort::On { .. }) {
                return Err(wrong("think", "a raw prompt says itself whether there is a thought"));
            }
            return Ok(Input::Text(prompt.to_string()));
        }
        let mut parts = shown;
        if !prompt.is_empty() || parts.is_empty() {
            parts.push(Part::Text(prompt.to_string()));
        }
        let system = self.system.as_ref().filter(|s| !s.is_empty());
        let mut all: Vec<Message> = system.map(Message::system).into_iter().collect();
        all.push(Message { parts, ..Message::new("user") });
        let chat =
            Chat { messages: all, format, thinking, parallel_calls: true, ..Chat::default() };
        Ok(Input::Chat(Box::new(chat)))
    }
}

/// Reads and checks a body as the route does, without a model.
pub fn check_generate(body: &[u8], limits: &Limits) -> Result<()> {
    let asked: GenerateRequest = read_json(body)?;
    keep_alive(asked.keep_alive.as_ref())?;
    asked.check()?;
    let options = Options::read(asked.options.as_ref())?;
    let prompt = asked.prompt.as_deref().unwrap_or_default();
    let input = asked.input(prompt, format(asked.format.as_ref())?, Effort::Default)?;
    let mut wanted = Wanted::new(input);
    wanted.stop = options.stop;
    wanted.check(limits)
}

/// Answers a prompt.
#[utoipa::path(post, path = "/api/generate", request_body = GenerateRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
    (status = 429, body = Value),
    (status = 503, body = Value),
))]
pub async fn generate(
    State(app): State<App>,
    caller: Caller,
    Json(asked): Json<GenerateRequest>,
) -> Result<Response> {
    let begun = Instant::now();
    let entry = entry(&app, asked.model.as_deref())?;
    let keep = keep_alive(asked.keep_alive.as_ref())?;
    asked.check()?;
    let prompt = asked.prompt.as_deref().unwrap_or_default();
    let shows = asked.images.as_ref().and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    if prompt.is_empty() && !shows {
        return load_only(&app, entry.name(), keep, Shape::Text).await;
    }
    let options = Options::read(asked.options.as_ref())?;
    let thinking = think(asked.think.as_ref(), entry)?;
    let mut wanted = Wanted::new(asked.input(prompt, format(asked.format.as_ref())?, thinking)?);
    wanted.logprobs = logprobs(asked.logprobs, asked.top_logprobs)?;
    let about = About { keep, begun, streams: asked.stream != Some(false), shape: Shape::Text };
    respond(&app, &caller, entry.name(), wanted, options, about).await
}
