//! What a request of `/v1/messages` says, checked.

use lapidary::Sampling;
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use utoipa::ToSchema;

use super::{messages, shown, tools, wrong};
use crate::service::{Chat, Effort, Failure, Format, Input, NO_THREADS, Result, Wanted};

/// A request for the next message of a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MessagesRequest {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// The conversation.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// The most tokens of the answer.
    pub max_tokens: Option<i64>,
    /// Instructions: a text, or blocks of text.
    pub system: Option<Value>,
    /// Whether the answer is told as it comes.
    pub stream: Option<bool>,
    /// Strings that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// 0 always takes the likeliest token; 0 to 1.
    pub temperature: Option<f64>,
    /// Keeps the likeliest tokens that add up to this; more than 0, to 1.
    pub top_p: Option<f64>,
    /// Keeps the likeliest tokens; 0 keeps all.
    pub top_k: Option<i64>,
    /// Same seed, same tokens. Anthropic has no such field.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Number>,
    /// Tools that may be called.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Whether one is called: an object whose `type` is `auto`, `any`, `tool` or `none`.
    #[schema(value_type = Option<Object>)]
    pub tool_choice: Option<Value>,
    /// Whether and how long the model thinks.
    #[schema(value_type = Option<Object>)]
    pub thinking: Option<Value>,
    /// How much effort the answer is worth, and the schema that it is held to.
    #[schema(value_type = Option<Object>)]
    pub output_config: Option<Value>,
    /// The schema that the answer is held to, by its older name.
    #[schema(value_type = Option<Object>)]
    pub output_format: Option<Value>,
    /// Whatever else there is: refused unless it changes nothing.
    #[serde(flatten)]
    #[schema(ignore)]
    pub rest: Map<String, Value>,
}

/// Fields that change nothing about an answer here: who asks, what for, and hints about speed.
const HARMLESS: &[&str] = &[
    "betas",
    "cache_control",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
];

/// Fields that are left out with a warning: agents send them, and do without what they ask for.
const LEFT_OUT: &[(&str, &str)] =
    &[("context_management", "nothing of the conversation is edited here")];

/// Fields that would change the answer and that are not done here.
const REFUSED: &[(&str, &str)] = &[
    ("container", "nothing is executed here"),
    ("compaction", "nothing is summarised here"),
    ("mcp_servers", "no other servers are asked here"),
    ("thread", "no conversations are kept here; send all of its messages"),
];

/// A request as the library wants it, and what is to be said of it.
pub(super) struct Read {
    pub wanted: Wanted,
    pub warnings: Vec<String>,
    /// Whether thoughts are left out of what is told.
    pub hides_thoughts: bool,
}

impl MessagesRequest {
    /// What it wants, checked. To count tokens, no length of the answer is needed.
    pub(super) fn read(&self, counts: bool) -> Result<Read> {
        let mut warnings = Vec::new();
        self.check_rest(&mut warnings)?;
        let max_tokens = match self.max_tokens {
            None if counts => None,
            None => return Err(wrong("max_tokens", "this field is required")),
            Some(n @ 1..) => Some(usize::try_from(n).unwrap_or(usize::MAX)),
            Some(n) => return Err(wrong("max_tokens", format!("{n} is less than 1"))),
        };
        let given = self.tools.as_deref().unwrap_or_default();
        let declared = tools::declared(given, &mut warnings)?;
        let (tool_choice, parallel_calls) = tools::choice(self.tool_choice.as_ref())?;
        let system = self.system.as_ref();
        let messages = messages::conversation(system, &self.messages, &mut warnings)?;
        let config = self.output_config.as_ref();
        let effort = config.and_then(|c| c.get("effort"));
        let thinking = thinking(self.thinking.as_ref(), effort, max_tokens)?;
        let format = match config.and_then(|c| c.get("format")).filter(|f| !f.is_null()) {
            Some(given) => format(given, "output_config.format")?,
            None => match self.output_format.as_ref() {
                Some(given) => format(given, "output_format")?,
                None => Format::Text,
            },
        };
        let chat = Chat {
            messages,
            tools: declared,
            tool_choice,
            parallel_calls,
            format,
            thinking,
            variables: Map::new(),
        };
        let mut wanted = Wanted::new(Input::Chat(Box::new(chat)));
        wanted.sampling = self.sampling()?;
        wanted.max_tokens = max_tokens;
        wanted.stop = self.stop_sequences.clone().unwrap_or_default();
        if let Some(i) = wanted.stop.iter().position(String::is_empty) {
            return Err(wrong(&format!("stop_sequences.{i}"), "this is empty"));
        }
        let display = self.thinking.as_ref().and_then(|t| t.get("display"));
        let hides_thoughts = match display.filter(|d| !d.is_null()).map(|d| d.as_str()) {
            None | Some(Some("summarized")) => false,
            Some(Some("omitted")) => true,
            Some(_) => {
                return Err(wrong("thinking.display", "there are `summarized` and `omitted`"));
            }
        };
        Ok(Read { wanted, warnings, hides_thoughts })
    }

    fn check_rest(&self, warnings: &mut Vec<String>) -> Result<()> {
        for (name, value) in &self.rest {
            let is = |known: &&(&str, &str)| known.0 == name;
            if value.is_null() || HARMLESS.contains(&name.as_str()) {
                continue;
            }
            if let Some((name, why)) = LEFT_OUT.iter().find(is) {
                warnings.push(format!("`{name}` was left out: {why}"));
                continue;
            }
            let is_empty = value.as_array().is_some_and(Vec::is_empty);
            if let Some((name, why)) = REFUSED.iter().find(is) {
                if is_empty {
                    continue;
                }
                let what = format!("{name}: not supported: {why}");
                let failure = Failure::unsupported(*name, what);
                return Err(match *name {
                    "thread" => Failure { code: NO_THREADS, ..failure },
                    _ => failure,
                });
            }
            let name = shown(name);
            let failure = Failure::unknown(name.clone());
            return Err(Failure { message: format!("{name}: there is no such field"), ..failure });
        }
        Ok(())
    }

    fn sampling(&self) -> Result<Sampling> {
        let within = |at: &str, x: Option<f64>, is_fit: fn(f64) -> bool, range: &str| match x {
            Some(x) if !is_fit(x) => Err(wrong(at, format!("{x} is not within {range}"))),
            x => Ok(x.map(|x| x as f32)),
        };
        let top_k = match self.top_k {
            None => None,
            Some(k) => match u32::try_from(k) {
                Ok(k) => Some(k),
                Err(_) => {
                    return Err(wrong("top_k", format!("{k} is not within 0 to {}", u32::MAX)));
                }
            },
        };
        let seed = match &self.seed {
            None => None,
            Some(n) => match n.as_u64().or_else(|| n.as_i64().map(i64::cast_unsigned)) {
                Some(seed) => Some(seed),
                None => return Err(wrong("seed", format!("{n} is not a whole number of 64 bits"))),
            },
        };
        let unit = |x: f64| (0.0..=1.0).contains(&x);
        Ok(Sampling {
            temperature: within("temperature", self.temperature, unit, "0 to 1")?,
            top_p: within("top_p", self.top_p, |x| x > 0.0 && x <= 1.0, "more than 0, to 1")?,
            top_k,
            seed,
            ..Sampling::default()
        })
    }
}

/// Whether and how long the model thinks.
fn thinking(
    given: Option<&Value>,
    effort: Option<&Value>,
    max_tokens: Option<usize>,
) -> Result<Effort> {
    let by_effort = match effort {
        None | Some(Value::Null) => None,
        Some(word) => match word.as_str() {
            Some("low") => Some(1024),
            Some("medium") => Some(4096),
            Some("high" | "xhigh" | "max") => None,
            _ => {
                let what = "there are `low`, `medium`, `high`, `xhigh` and `max`";
                return Err(wrong("output_config.effort", what));
            }
        },
    };
    let Some(given) = given.filter(|given| !given.is_null()) else { return Ok(Effort::Default) };
    match given.get("type").and_then(Value::as_str) {
        Some("disabled" | "between_tools") => Ok(Effort::Off),
        Some("adaptive") => Ok(Effort::On { budget: by_effort }),
        Some("enabled") => {
            let at = "thinking.budget_tokens";
            let budget = match given.get("budget_tokens") {
                // Some clients leave it out.
                None | Some(Value::Null) => return Ok(Effort::On { budget: by_effort }),
                Some(n) => n.as_u64().filter(|n| *n >= 1),
            };
            let budget = budget.ok_or_else(|| wrong(at, "this is a whole number, at least 1"))?;
            let budget = usize::try_from(budget).unwrap_or(usize::MAX);
            if max_tokens.is_some_and(|most| budget >= most) {
                return Err(wrong(at, "this must be less than `max_tokens`"));
            }
            Ok(Effort::On { budget: Some(budget) })
        }
        _ => Err(wrong("thinking.type", "there are `enabled`, `disabled` and `adaptive`")),
    }
}

/// What the text of the answer is held to.
fn format(given: &Value, at: &str) -> Result<Format> {
    match (given.get("type").and_then(Value::as_str), given.get("schema")) {
        (None, _) if given.is_null() => Ok(Format::Text),
        (Some("json_schema"), Some(schema @ (Value::Object(_) | Value::Bool(_)))) => {
            Ok(Format::JsonSchema(schema.clone()))
        }
        (Some("json_schema"), _) => Err(wrong(&format!("{at}.schema"), "this is a JSON schema")),
        _ => Err(wrong(&format!("{at}.type"), "there is `json_schema`")),
    }
}
