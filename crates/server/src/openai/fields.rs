//! Fields that more than one route has: each number with its range, each unknown name refused.

use lapidary::Sampling;
use serde::Deserialize;
use serde_json::{Map, Number, Value};
use utoipa::ToSchema;

use crate::service::{Failure, Lease, Result, Wanted};

/// The range of a number.
struct Range {
    param: &'static str,
    low: f64,
    high: f64,
    /// Whether the lowest number itself is out of range.
    is_above: bool,
}

const fn range(param: &'static str, low: f64, high: f64) -> Range {
    Range { param, low, high, is_above: false }
}

/// Every number of OpenAI's requests that has a range of its own. What is not within it is refused
/// with its name, and what is goes on as it is.
const RANGES: &[Range] = &[
    range("temperature", 0.0, 2.0),
    Range { param: "top_p", low: 0.0, high: 1.0, is_above: true },
    range("min_p", 0.0, 1.0),
    range("top_k", 0.0, 2_147_483_647.0),
    range("presence_penalty", -2.0, 2.0),
    range("frequency_penalty", -2.0, 2.0),
    Range { param: "repetition_penalty", low: 0.0, high: 100.0, is_above: true },
    range("max_tokens", 1.0, 2_147_483_647.0),
    range("max_completion_tokens", 1.0, 2_147_483_647.0),
    range("max_output_tokens", 1.0, 2_147_483_647.0),
    range("thinking_budget", 0.0, 2_147_483_647.0),
    range("n", 1.0, 128.0),
    range("best_of", 1.0, 1.0),
    range("top_logprobs", 0.0, 20.0),
    range("logprobs", 0.0, 20.0),
    range("logit_bias", -100.0, 100.0),
];

/// Checks a number against the range of its name.
pub(super) fn check(param: &'static str, value: f64) -> Result<f64> {
    let Some(range) = RANGES.iter().find(|r| r.param == param) else {
        return Err(Failure::internal(format!("`{param}` has no range")));
    };
    let is_within = value >= range.low && value <= range.high;
    if is_within && !(range.is_above && value == range.low) {
        return Ok(value);
    }
    let from = if range.is_above { "more than " } else { "" };
    let what = format!("{value} is not within {from}{} to {}", range.low, range.high);
    Err(Failure::param(param, what))
}

/// A number with a fraction.
pub(super) fn real(param: &'static str, value: Option<f64>) -> Result<Option<f32>> {
    Ok(value.map(|value| check(param, value)).transpose()?.map(|value| value as f32))
}

/// A whole number.
pub(super) fn whole(param: &'static str, value: Option<i64>) -> Result<Option<usize>> {
    // Every range of whole numbers ends far below what is exact here.
    let checked = value.map(|value| check(param, value as f64)).transpose()?;
    Ok(checked.map(|value| value as usize))
}

/// How tokens are chosen, in the words of all routes.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct SamplingFields {
    /// 0 always takes the likeliest token; 0 to 2.
    pub temperature: Option<f64>,
    /// Keeps the likeliest tokens that add up to this; more than 0, to 1.
    pub top_p: Option<f64>,
    /// Keeps the likeliest tokens; 0 keeps all.
    pub top_k: Option<i64>,
    /// Keeps tokens at least this times as likely as the likeliest.
    pub min_p: Option<f64>,
    /// Taken once from the scores of tokens in the answer; −2 to 2.
    pub presence_penalty: Option<f64>,
    /// Taken once per occurrence; −2 to 2.
    pub frequency_penalty: Option<f64>,
    /// Divides the scores of tokens that were already there.
    pub repetition_penalty: Option<f64>,
    /// Same seed, same tokens.
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Number>,
    /// Added to the scores of tokens, by their ids; −100 to 100.
    #[schema(value_type = Option<std::collections::BTreeMap<String, f64>>)]
    pub logit_bias: Option<Map<String, Value>>,
}

impl SamplingFields {
    /// All of it, checked.
    pub fn sampling(&self) -> Result<Sampling> {
        Ok(Sampling {
            temperature: real("temperature", self.temperature)?,
            top_k: whole("top_k", self.top_k)?.and_then(|k| u32::try_from(k).ok()),
            top_p: real("top_p", self.top_p)?,
            min_p: real("min_p", self.min_p)?,
            repetition_penalty: real("repetition_penalty", self.repetition_penalty)?,
            presence_penalty: real("presence_penalty", self.presence_penalty)?,
            frequency_penalty: real("frequency_penalty", self.frequency_penalty)?,
            seed: self.seed.as_ref().map(seed).transpose()?,
            logit_bias: self.logit_bias.as_ref().map(bias).transpose()?.unwrap_or_default(),
        })
    }
}

fn seed(given: &Number) -> Result<u64> {
    // A negative one is as good a key as any.
    let signed = || given.as_i64().map(i64::cast_unsigned);
    let wrong = || Failure::param("seed", format!("{given} is not a whole number of 64 bits"));
    given.as_u64().or_else(signed).ok_or_else(wrong)
}

fn bias(given: &Map<String, Value>) -> Result<Vec<(u32, f32)>> {
    let one = |(id, value): (&String, &Value)| {
        let shown: String = id.chars().take(40).collect();
        let wrong = |what: String| Failure::param("logit_bias", what);
        let id = id.parse().map_err(|_| wrong(format!("`{shown}` is not the id of a token")))?;
        let value =
            value.as_f64().ok_or_else(|| wrong(format!("the bias of {shown} is not a number")))?;
        Ok((id, check("logit_bias", value)? as f32))
    };
    given.iter().map(one).collect()
}

/// One string, or several.
pub(super) fn stop(given: Option<&Value>) -> Result<Vec<String>> {
    let wrong = || Failure::param("stop", "this is a string, or a list of strings");
    match given {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(Value::Array(all)) => {
            all.iter().map(|s| s.as_str().map(String::from).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// Fields that change nothing about an answer here: who asks, what for, and hints about speed.
const HARMLESS: &[&str] = &[
    "cache_prompt",
    "id_slot",
    "metadata",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "priority",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "timings_per_token",
    "user",
];

/// Fields that would change the answer and that are not done here, with what to do.
const REFUSED: &[(&str, &str)] = &[
    ("audio", "answers are text"),
    ("best_of", "ask for `n` answers and choose"),
    ("dry_multiplier", "this sampler is not there"),
    ("function_call", "use `tool_choice`"),
    ("functions", "use `tools`"),
    ("grammar", "use `response_format`"),
    ("guided_choice", "use `response_format`"),
    ("guided_json", "use `response_format`"),
    ("guided_regex", "use `response_format`"),
    ("min_tokens", "an answer's least length can't be set"),
    ("mirostat", "this sampler is not there"),
    ("typical_p", "this sampler is not there"),
    ("use_beam_search", "beams are not searched"),
    ("verbosity", "say in the prompt how long the answer should be"),
    ("web_search_options", "nothing is searched here"),
    ("xtc_probability", "this sampler is not there"),
];

/// Tokens that prompt and answer may fill together, as agents ask it of Ollama behind this API:
/// `options.num_ctx`. All else has a field of its own here.
pub(super) fn context(rest: &mut Map<String, Value>) -> Result<Option<usize>> {
    let options = match rest.remove("options") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(options)) => options,
        Some(_) => return Err(Failure::param("options", "this is an object")),
    };
    let mut context = None;
    for (name, value) in options.iter().filter(|(_, value)| !value.is_null()) {
        let shown: String = name.chars().take(60).collect();
        let at = format!("options.{shown}");
        if name != "num_ctx" {
            let what = format!("`{at}` is not supported: of options there is `num_ctx` alone");
            return Err(Failure::unsupported(at, what));
        }
        let n = value.as_u64().filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
        context =
            Some(n.ok_or_else(|| {
                Failure::param(at, "this is a whole number of tokens, at least 1")
            })?);
    }
    Ok(context)
}

/// A context that was asked for and is longer than there is.
pub(super) fn short_context(wanted: &Wanted, lease: &Lease) -> Option<String> {
    let context = lease.engine().max_context();
    wanted.context.filter(|n| *n > context).map(|n| {
        format!(
            "options.num_ctx is {n}, and this model is served with a context of {context} tokens"
        )
    })
}

/// Refuses what is left of a request's fields unless it changes nothing.
pub(super) fn check_rest(rest: &Map<String, Value>) -> Result<()> {
    for (name, value) in rest {
        let is_default = match name.as_str() {
            "modalities" => value.as_array().is_some_and(|all| all.iter().all(|m| m == "text")),
            "verbosity" => value == "medium",
            "best_of" => value.as_u64() == Some(1),
            "use_beam_search" => *value == Value::Bool(false),
            _ => false,
        };
        if value.is_null() || is_default || HARMLESS.contains(&name.as_str()) {
            continue;
        }
        if name == "modalities" {
            return Err(Failure::unsupported("modalities", "answers are text alone"));
        }
        if let Some((_, instead)) = REFUSED.iter().find(|(refused, _)| refused == name) {
            let what = format!("`{name}` is not supported: {instead}");
            return Err(Failure::unsupported(name.clone(), what));
        }
        let shown: String = name.chars().take(100).collect();
        return Err(Failure::unknown(shown));
    }
    Ok(())
}
