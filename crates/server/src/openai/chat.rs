//! `/v1/chat/completions`.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::chat_tell::{ChatTeller, Head};
use super::fields::{self, SamplingFields};
use super::shapes::{self, Usage};
use super::{messages, tools};
use crate::app::App;
use crate::http::{Caller, Json, PING, Whole, events, read_json, tell, whole};
use crate::service::{Chat, Effort, End, Failure, Format, Input, Lease, Limits, Result, Wanted};

/// A request for the answer to a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// Whether the answer is told as it comes.
    pub stream: Option<bool>,
    /// What is told besides.
    pub stream_options: Option<StreamOptions>,
    /// How many answers.
    #[schema(minimum = 1, maximum = 8)]
    pub n: Option<i64>,
    /// Strings that end the answer.
    #[schema(value_type = Option<Vec<String>>)]
    pub stop: Option<Value>,
    /// The most tokens of the answer.
    #[schema(minimum = 1)]
    pub max_tokens: Option<i64>,
    /// The same, newer.
    #[schema(minimum = 1)]
    pub max_completion_tokens: Option<i64>,
    /// Whether log-probabilities are told.
    pub logprobs: Option<bool>,
    /// Of how many likeliest tokens; 0 to 20.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<i64>,
    /// What the answer is held to: `text`, `json_object` or `json_schema`.
    #[schema(value_type = Option<Object>)]
    pub response_format: Option<Value>,
    /// Tools that may be called.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Whether one is called: `auto`, `none`, `required`, or a function.
    pub tool_choice: Option<Value>,
    /// Whether several may be called at once.
    pub parallel_tool_calls: Option<bool>,
    /// How long the model thinks: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`.
    pub reasoning_effort: Option<String>,
    /// The most tokens of its thought.
    #[serde(alias = "thinking_token_budget", alias = "reasoning_budget")]
    #[schema(minimum = 0)]
    pub thinking_budget: Option<i64>,
    /// Further variables of the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Takes the model's own end for a token like others.
    pub ignore_eos: Option<bool>,
    /// Tells how much of the prompt was read.
    pub return_progress: Option<bool>,
    /// 0 always takes the likeliest token; 0 to 2.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f64>,
    /// Keeps the likeliest tokens that add up to this; more than 0, to 1.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Keeps the likeliest tokens; 0 keeps all.
    #[schema(minimum = 0)]
    pub top_k: Option<i64>,
    /// Keeps tokens at least this times as likely as the likeliest.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// Taken once from the scores of tokens in the answer; −2 to 2.
    pub presence_penalty: Option<f64>,
    /// Taken once per occurrence; −2 to 2.
    pub frequency_penalty: Option<f64>,
    /// Divides the scores of tokens that were already there.
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f64>,
    /// Same seed, same tokens.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<serde_json::Number>,
    /// Added to the scores of tokens, by their ids; −100 to 100.
    #[schema(value_type = Option<std::collections::BTreeMap<String, f64>>)]
    pub logit_bias: Option<Map<String, Value>>,
    /// Whatever else there is: refused unless it changes nothing.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// What a stream tells besides the answer.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether the numbers of tokens come at the end.
    pub include_usage: Option<bool>,
    /// Harmless here: nothing is padded.
    pub include_obfuscation: Option<bool>,
}

impl ChatRequest {
    fn sampling(&mut self) -> SamplingFields {
        SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed.take(),
            logit_bias: self.logit_bias.take(),
        }
    }

    /// What it wants, checked, and what is to be said of it.
    fn wanted(&mut self) -> Result<(Wanted, Vec<String>)> {
        let context = fields::context(&mut self.rest)?;
        fields::check_rest(&self.rest)?;
        let sampling = self.sampling().sampling()?;
        let given = self.tools.take().unwrap_or_default();
        let (mut tools, warnings) = tools::functions(&given, false)?;
        let tool_choice = tools::choice(self.tool_choice.as_ref(), &mut tools)?;
        let input = messages::chat(&self.messages, &tools)?;
        let mut wanted = Wanted::new(input);
        wanted.sampling = sampling;
        wanted.context = context;
        wanted.n = fields::whole("n", self.n)?.unwrap_or(1);
        wanted.stop = fields::stop(self.stop.as_ref())?;
        wanted.max_tokens = max_tokens(self.max_tokens, self.max_completion_tokens)?;
        wanted.logprobs = logprobs(self.logprobs, self.top_logprobs)?;
        wanted.ignore_eos = self.ignore_eos == Some(true);
        wanted.progress = self.return_progress == Some(true) && self.stream == Some(true);
        let format = self.response_format.as_ref().map(format).transpose()?.unwrap_or_default();
        let mut variables = self.chat_template_kwargs.take().unwrap_or_default();
        let effort = self.reasoning_effort.as_deref();
        let thinking = thinking(effort, self.thinking_budget, &mut variables)?;
        if self.stream_options.is_some() && self.stream != Some(true) {
            let what = "`stream_options` goes with `stream: true` alone";
            return Err(Failure::param("stream_options", what));
        }
        if let Input::Chat(chat) = &mut wanted.input {
            **chat = Chat {
                tool_choice,
                parallel_calls: self.parallel_tool_calls != Some(false),
                format,
                thinking,
                variables,
                ..std::mem::take(&mut **chat)
            };
        }
        Ok((wanted, warnings))
    }
}

/// The newer of two names for the same.
fn max_tokens(old: Option<i64>, new: Option<i64>) -> Result<Option<usize>> {
    let old = fields::whole("max_tokens", old)?;
    let new = fields::whole("max_completion_tokens", new)?;
    match (old, new) {
        (Some(a), Some(b)) if a != b => {
            let what = "`max_tokens` and `max_completion_tokens` are the same; give one";
            Err(Failure::param("max_tokens", what))
        }
        _ => Ok(new.or(old)),
    }
}

fn logprobs(wanted: Option<bool>, top: Option<i64>) -> Result<Option<usize>> {
    let top = fields::whole("top_logprobs", top)?;
    match (wanted, top) {
        (Some(true), top) => Ok(Some(top.unwrap_or(0))),
        (_, Some(n)) if n > 0 => {
            Err(Failure::param("top_logprobs", "`top_logprobs` goes with `logprobs: true` alone"))
        }
        _ => Ok(None),
    }
}

/// How long to think, by a word.
pub(super) fn effort(word: &str, param: &str) -> Result<Effort> {
    let budget = match word {
        "none" => return Ok(Effort::Off),
        "minimal" => Some(256),
        "low" => Some(1024),
        "medium" => Some(4096),
        "high" | "xhigh" | "max" => None,
        _ => {
            let what = "there are `none`, `minimal`, `low`, `medium`, `high`, `xhigh` and `max`";
            return Err(Failure::param(param, what));
        }
    };
    Ok(Effort::On { budget })
}

fn thinking(
    word: Option<&str>,
    budget: Option<i64>,
    variables: &mut Map<String, Value>,
) -> Result<Effort> {
    let budget = fields::whole("thinking_budget", budget)?;
    let switch = match variables.remove("enable_thinking") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(on)) => Some(on),
        Some(_) => {
            return Err(Failure::param(
                "chat_template_kwargs.enable_thinking",
                "this is true or false",
            ));
        }
    };
    let asked = word.map(|word| effort(word, "reasoning_effort")).transpose()?;
    Ok(match (budget, asked, switch) {
        (Some(0), ..) => Effort::Off,
        (Some(n), ..) => Effort::On { budget: Some(n) },
        (None, Some(effort), _) => effort,
        (None, None, Some(true)) => Effort::On { budget: None },
        (None, None, Some(false)) => Effort::Off,
        (None, None, None) => Effort::Default,
    })
}

/// What an answer is held to.
pub(super) fn format(given: &Value) -> Result<Format> {
    let at = |what: &str| format!("response_format{what}");
    match given.get("type").and_then(Value::as_str) {
        Some("text") => Ok(Format::Text),
        Some("json_object") => Ok(Format::JsonObject),
        Some("json_schema") => {
            // The Responses API has no object inside.
            let inside = given.get("json_schema").unwrap_or(given);
            match inside.get("schema") {
                Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
                    Ok(Format::JsonSchema(schema.clone()))
                }
                _ => Err(Failure::param(at(".json_schema.schema"), "this is a JSON schema")),
            }
        }
        _ => Err(Failure::param(at(".type"), "there are `text`, `json_object` and `json_schema`")),
    }
}

/// Reads and checks a body as the route does, without a model.
pub fn check_chat(body: &[u8], limits: &Limits) -> Result<()> {
    read_json::<ChatRequest>(body)?.wanted()?.0.check(limits)
}

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", request_body = ChatRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
    (status = 429, body = Value),
    (status = 503, body = Value),
))]
pub async fn chat(
    State(app): State<App>,
    caller: Caller,
    Json(mut asked): Json<ChatRequest>,
) -> Result<Response> {
    let (wanted, mut warnings) = asked.wanted()?;
    wanted.check(app.limits())?;
    let lease = app.lease(asked.model.as_deref()).await?;
    warnings.extend(no_thoughts(&wanted, &lease));
    warnings.extend(fields::short_context(&wanted, &lease));
    let (n, grows) = (wanted.n, wanted.holds_calls());
    let has_logprobs = wanted.logprobs.is_some();
    let mut answers = app.ask(&lease, caller.scope, wanted, &caller.trace).await?;
    let head = Head::new("chatcmpl-", lease.entry().name(), warnings);
    if asked.stream == Some(true) {
        answers.begin(PING).await?;
        let has_usage = asked.stream_options.unwrap_or_default().include_usage == Some(true);
        let teller = ChatTeller::new(head, lease, &caller.id, n, has_usage, has_logprobs);
        return Ok(events(tell(answers, n, grows, teller)));
    }
    let all = whole(answers, n, grows).await?;
    Ok(axum::Json(response(&head, &lease, all, has_logprobs)).into_response())
}

/// A thought that was asked of a model that has none.
pub(super) fn no_thoughts(wanted: &Wanted, lease: &Lease) -> Option<String> {
    let format = lease.engine().metadata().answer.as_ref();
    let thinks = format.is_some_and(|f| f.thinking.is_some());
    let is_asked =
        matches!(&wanted.input, Input::Chat(chat) if matches!(chat.thinking, Effort::On { .. }));
    (is_asked && !thinks).then(|| "this model does not think; it was asked to in vain".to_string())
}

fn response(head: &Head, lease: &Lease, all: Vec<(Whole, End)>, has_logprobs: bool) -> Value {
    let mut usage = Usage::default();
    let mut timings = Value::Null;
    let mut choices = Vec::new();
    for (index, (whole, end)) in all.into_iter().enumerate() {
        usage.add(&end);
        timings = shapes::timings(&end.finish.stats);
        let calls: Vec<Value> = whole
            .calls
            .iter()
            .chain(&whole.cut)
            .map(|call| {
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            })
            .collect();
        let is_silent = whole.text.is_empty() && !calls.is_empty();
        let mut message = json!({
            "role": "assistant",
            "content": if is_silent { Value::Null } else { whole.text.into() },
            "refusal": null,
            "annotations": [],
        });
        if !whole.thinking.is_empty() {
            message["reasoning_content"] = whole.thinking.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let logprobs = match has_logprobs {
            true => shapes::logprobs(lease.engine().model(), &whole.tokens),
            false => Value::Null,
        };
        choices.push(json!({
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": shapes::finish_reason(end.reason),
        }));
    }
    let mut body = head.json("chat.completion");
    body["choices"] = choices.into();
    body["usage"] = usage.json();
    body["timings"] = timings;
    head.warn(&mut body);
    body
}
