//! What a request of this route wants, and what its response says of that.

use std::time::SystemTime;

use lapidary::{Message, SamplingParams};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::super::fields::{self, SamplingFields};
use super::super::store::Stored;
use super::super::{chat, messages, tools};
use super::input;
use super::items::Made;
use crate::service::{Chat, Effort, Failure, Input, Lease, Result, Wanted, new_id, unix};

/// A request for an answer.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ResponseRequest {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// A text, or items.
    pub input: Option<Value>,
    /// What stands before everything else.
    pub instructions: Option<String>,
    /// The answer that this goes on from.
    pub previous_response_id: Option<String>,
    /// Whether the answer is kept for a while, to go on from [default: true].
    pub store: Option<bool>,
    /// Whether the answer is told as it comes.
    pub stream: Option<bool>,
    /// The most tokens of the answer.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<i64>,
    /// Tools that may be called.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Whether one is called.
    pub tool_choice: Option<Value>,
    /// Whether several may be called at once.
    pub parallel_tool_calls: Option<bool>,
    /// What the answer's text is held to.
    #[schema(value_type = Option<Object>)]
    pub text: Option<Value>,
    /// How long the model thinks.
    #[schema(value_type = Option<Object>)]
    pub reasoning: Option<Value>,
    /// What is told besides.
    pub include: Option<Vec<String>>,
    /// Of how many likeliest tokens log-probabilities are told; 0 to 20.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<i64>,
    /// `disabled`: nothing is left out of a prompt that is too long.
    pub truncation: Option<String>,
    /// Notes of the caller's.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Value>,
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
    /// Same seed, same tokens.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<serde_json::Number>,
    /// Whatever else there is: refused unless it changes nothing.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// Fields of this route that change nothing about an answer here.
const HARMLESS: &[&str] = &["client_metadata", "max_tool_calls", "stream_options"];

/// What a response says of its request.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub warnings: Vec<String>,
    pub stores: bool,
    asked: Value,
}

/// What later requests go on from.
pub(super) struct Kept {
    pub messages: Vec<Message>,
    pub items: Vec<Value>,
}

/// The same failure in the words of this route.
pub(super) fn renamed(failure: Failure) -> Failure {
    let Some(param) = failure.param.as_deref() else { return failure };
    let param = match param {
        _ if param == "messages" || param.starts_with("messages[") => "input".to_string(),
        _ if param.starts_with("response_format") => "text.format".to_string(),
        "max_tokens" => "max_output_tokens".to_string(),
        _ => param.replace("].function.", "]."),
    };
    failure.at(param)
}

impl ResponseRequest {
    /// What it wants, what its response will say of that, and what is kept of it.
    /// `item` finds one that was answered before.
    pub(super) fn wanted(
        &mut self,
        before: Option<&Stored>,
        item: &dyn Fn(&str) -> Option<Value>,
    ) -> Result<(Wanted, Shape, Kept)> {
        let context = fields::context(&mut self.rest)?;
        let compacts = self.rest.remove("context_management");
        self.check()?;
        let sampling = SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed.take(),
            ..SamplingFields::default()
        };
        let sampling = sampling.sampling()?;
        let given = self.tools.take().unwrap_or_default();
        let further = input::further_tools(self.input.as_ref(), &given);
        let all = [given.as_slice(), &further].concat();
        let (mut functions, mut warnings) = tools::functions(&all, true)?;
        // Agents send it, and do without what it asks for.
        if compacts.is_some_and(|v| !v.is_null() && v != json!([])) {
            let what = "nothing of the conversation is summarised here";
            warnings.push(format!("`context_management` was left out: {what}"));
        }
        let tool_choice = tools::choice(self.tool_choice.as_ref(), &mut functions)?;
        let format = self.text.as_ref().and_then(|text| text.get("format"));
        let format = format.filter(|f| !f.is_null()).map(chat::format).transpose();
        let format = format.map_err(|e| e.at("text.format"))?.unwrap_or_default();
        let effort = self.reasoning.as_ref().and_then(|r| r.get("effort"));
        let thinking = match effort {
            None | Some(Value::Null) => Effort::Default,
            Some(Value::String(word)) => chat::effort(word, "reasoning.effort")?,
            Some(_) => return Err(Failure::param("reasoning.effort", "this is a string")),
        };
        let missing = || Failure::param("input", "there is no `input`");
        let given_input = input::read(self.input.as_ref().ok_or_else(missing)?, item)?;
        warnings.extend(given_input.warnings.iter().cloned());
        let mut history = before.map(|b| b.messages.clone()).unwrap_or_default();
        given_input.check(&history)?;
        history.extend(given_input.messages);
        let kept = Kept { messages: history.clone(), items: given_input.items };
        // Instructions are those of one request alone, and stand before all others.
        let instructions = self.instructions.as_deref().filter(|text| !text.is_empty());
        let first = instructions.map(Message::system);
        let messages = messages::together(first.into_iter().chain(history).collect());
        let parallel_calls = self.parallel_tool_calls != Some(false);
        let chat = Chat {
            messages,
            tools: functions,
            tool_choice,
            parallel_calls,
            format,
            thinking,
            variables: Map::new(),
        };
        let mut wanted = Wanted::new(Input::Chat(Box::new(chat)));
        wanted.sampling = sampling;
        wanted.context = context;
        wanted.max_tokens = fields::whole("max_output_tokens", self.max_output_tokens)?;
        let top = fields::whole("top_logprobs", self.top_logprobs)?;
        let include = self.include.as_deref().unwrap_or_default();
        let is_included = include.iter().any(|i| i == "message.output_text.logprobs");
        wanted.logprobs = (is_included || top.is_some_and(|n| n > 0)).then_some(top.unwrap_or(0));
        let shape = Shape {
            id: new_id("resp_"),
            created: unix(SystemTime::now()),
            model: String::new(),
            warnings,
            stores: self.store != Some(false),
            asked: self.shown(&given, parallel_calls),
        };
        Ok((wanted, shape, kept))
    }

    fn check(&mut self) -> Result<()> {
        let refused = [
            ("background", "answers come while you wait"),
            ("conversation", "use `previous_response_id`"),
            ("prompt", "prompts are not kept here"),
        ];
        for (name, instead) in refused {
            let is_asked = |v: &Value| !v.is_null() && *v != Value::Bool(false);
            if self.rest.remove(name).is_some_and(|v| is_asked(&v)) {
                let what = format!("`{name}` is not supported: {instead}");
                return Err(Failure::unsupported(name, what));
            }
        }
        self.rest.retain(|name, _| !HARMLESS.contains(&name.as_str()));
        fields::check_rest(&self.rest)?;
        if self.truncation.as_deref().is_some_and(|t| t != "disabled") {
            let what = "nothing is left out of a prompt without a word; there is `disabled` alone";
            return Err(Failure::unsupported("truncation", what));
        }
        let verbosity = self.text.as_ref().and_then(|text| text.get("verbosity"));
        if verbosity.is_some_and(|v| !v.is_null() && *v != "medium") {
            let what = "`text.verbosity` is not supported: say in the prompt how long the answer should be";
            return Err(Failure::unsupported("text.verbosity", what));
        }
        Ok(())
    }

    /// What the response repeats of the request.
    fn shown(&self, tools: &[Value], parallel_calls: bool) -> Value {
        let or = |value: Option<&Value>, other: Value| match value {
            None | Some(Value::Null) => other,
            Some(value) => value.clone(),
        };
        let part = |of: &Option<Value>, name: &str| of.as_ref().and_then(|v| v.get(name).cloned());
        json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": null,
            "metadata": or(self.metadata.as_ref(), json!({})),
            "parallel_tool_calls": parallel_calls,
            "previous_response_id": self.previous_response_id,
            "reasoning": {
                "effort": part(&self.reasoning, "effort"),
                "summary": part(&self.reasoning, "summary"),
            },
            "store": self.store != Some(false),
            "temperature": self.temperature,
            "text": {
                "format": or(part(&self.text, "format").as_ref(), json!({"type": "text"})),
                "verbosity": "medium",
            },
            "tool_choice": or(self.tool_choice.as_ref(), json!("auto")),
            "tools": tools.iter().map(declared).collect::<Vec<_>>(),
            "top_logprobs": self.top_logprobs.unwrap_or(0),
            "top_p": self.top_p,
            "truncation": "disabled",
        })
    }
}

/// A tool with all fields that strict clients look for.
fn declared(tool: &Value) -> Value {
    let mut tool = tool.clone();
    if let Some(fields) = tool.as_object_mut()
        && fields.get("type").is_some_and(|kind| kind == "function")
    {
        fields.entry("description").or_insert(Value::Null);
        fields.entry("parameters").or_insert(Value::Null);
        fields.entry("strict").or_insert(Value::Bool(true));
    }
    tool
}

impl Shape {
    /// Says which model answers, and what it chooses where its caller did not.
    pub fn of_model(&mut self, lease: &Lease) {
        self.model = lease.entry().name().to_string();
        let usual = SamplingParams::of(lease.engine().metadata());
        for (name, number) in [("temperature", usual.temperature), ("top_p", usual.top_p)] {
            if self.asked[name].is_null() {
                // As it was written: 0.95, and not the float next to it.
                self.asked[name] = ((f64::from(number) * 1e6).round() / 1e6).into();
            }
        }
    }

    /// The response while it is being made, or when it is.
    pub fn response(&self, made: &Made) -> Value {
        let (status, incomplete) = match made.is_complete() {
            None => ("in_progress", Value::Null),
            Some(true) => ("completed", Value::Null),
            Some(false) => ("incomplete", json!({"reason": "max_output_tokens"})),
        };
        let mut body = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "completed_at": made.is_complete().map(|_| unix(SystemTime::now())),
            "error": null,
            "incomplete_details": incomplete,
            "model": self.model,
            "output": made.output(),
            "prompt_cache_key": null,
            "safety_identifier": null,
            "service_tier": "default",
            "user": null,
            "usage": made.usage(),
        });
        if let (Some(body), Some(asked)) = (body.as_object_mut(), self.asked.as_object()) {
            body.extend(asked.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        if let Some(timings) = made.timings() {
            body["timings"] = timings;
        }
        if !self.warnings.is_empty() {
            body["warnings"] = self.warnings.as_slice().into();
        }
        body
    }
}
