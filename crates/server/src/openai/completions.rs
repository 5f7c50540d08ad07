//! `/v1/completions`: plain text goes on.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use lapidary::{Logprobs, Model, Prompt};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::chat::StreamOptions;
use super::chat_tell::Head;
use super::fields::{self, SamplingFields};
use super::shapes::{self, Usage};
use crate::app::App;
use crate::http::{Caller, Json, Out, PING, Teller, Whole, events, read_json, tell, whole};
use crate::service::{Asked, Dialect, End, Failure, Input, Limits, Piece, Result, Wanted};
use std::sync::Arc;

/// A request for more of a text.
#[derive(Debug, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// The model; without one, the first.
    pub model: Option<String>,
    /// A text, texts, token ids, or lists of token ids.
    pub prompt: Option<Value>,
    /// Whether the answer is told as it comes.
    pub stream: Option<bool>,
    /// What is told besides.
    pub stream_options: Option<StreamOptions>,
    /// How many answers to each prompt.
    #[schema(minimum = 1, maximum = 8)]
    pub n: Option<i64>,
    /// Strings that end the answer.
    #[schema(value_type = Option<Vec<String>>)]
    pub stop: Option<Value>,
    /// The most tokens of the answer [default: 16].
    #[schema(minimum = 0)]
    pub max_tokens: Option<i64>,
    /// Log-probabilities of so many likeliest tokens; 0 to 20.
    #[schema(minimum = 0, maximum = 20)]
    pub logprobs: Option<i64>,
    /// Whether the prompt is told, too.
    pub echo: Option<bool>,
    /// Not supported.
    #[schema(ignore)]
    pub suffix: Option<Value>,
    /// Takes the model's own end for a token like others.
    pub ignore_eos: Option<bool>,
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

/// The most tokens of an answer, unless told: as OpenAI has it.
const MAX_TOKENS: usize = 16;

impl CompletionRequest {
    fn wanted(&mut self, limits: &Limits) -> Result<Vec<Wanted>> {
        let context = fields::context(&mut self.rest)?;
        fields::check_rest(&self.rest)?;
        if self.suffix.as_ref().is_some_and(|s| !s.is_null() && *s != "") {
            let what =
                "`suffix` is not supported: these models go on from a text, they fill no gaps";
            return Err(Failure::unsupported("suffix", what));
        }
        let sampling = SamplingFields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed.take(),
            logit_bias: self.logit_bias.take(),
        };
        let sampling = sampling.sampling()?;
        let echoes = self.echo == Some(true);
        let max_tokens = match self.max_tokens {
            Some(0) if echoes => 0,
            given => fields::whole("max_tokens", given)?.unwrap_or(MAX_TOKENS),
        };
        let logprobs = fields::whole("logprobs", self.logprobs)?;
        let stop = fields::stop(self.stop.as_ref())?;
        let n = fields::whole("n", self.n)?.unwrap_or(1);
        if self.stream_options.is_some() && self.stream != Some(true) {
            let what = "`stream_options` goes with `stream: true` alone";
            return Err(Failure::param("stream_options", what));
        }
        let prompts = prompts(self.prompt.take(), limits.prompts)?;
        let one = |input: Input| {
            let mut wanted = Wanted::new(input);
            wanted.sampling = sampling.clone();
            wanted.context = context;
            wanted.max_tokens = Some(max_tokens);
            wanted.stop = stop.clone();
            wanted.n = n;
            wanted.logprobs = logprobs;
            // An answer of no tokens is asked for what its prompt is.
            wanted.prompt_logprobs = logprobs.filter(|_| echoes).or((max_tokens == 0).then_some(0));
            wanted.ignore_eos = self.ignore_eos == Some(true);
            wanted
        };
        Ok(prompts.into_iter().map(one).collect())
    }
}

/// A text, texts, ids, or lists of ids.
pub(super) fn prompts(given: Option<Value>, limit: usize) -> Result<Vec<Input>> {
    let wrong = || {
        let what = "this is a text, a list of texts, a list of token ids, or a list of such lists";
        Failure::param("prompt", what)
    };
    let ids = |all: &[Value]| {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(wrong);
        all.iter().map(id).collect::<Result<Vec<u32>>>()
    };
    let all = match given {
        Some(Value::String(text)) => return Ok(vec![Input::Text(text)]),
        Some(Value::Array(all)) if !all.is_empty() => all,
        _ => return Err(wrong()),
    };
    if all.iter().all(Value::is_number) {
        return Ok(vec![Input::Ids(ids(&all)?)]);
    }
    if all.len() > limit {
        let what = format!("{} are given and {limit} may be", all.len());
        return Err(Failure::param("prompt", what));
    }
    let one = |one: Value| match one {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(all) if !all.is_empty() => Ok(Input::Ids(ids(&all)?)),
        _ => Err(wrong()),
    };
    all.into_iter().map(one).collect()
}

/// Reads and checks a body as the route does, without a model.
pub fn check_completions(body: &[u8], limits: &Limits) -> Result<()> {
    let all = read_json::<CompletionRequest>(body)?.wanted(limits)?;
    all.iter().try_for_each(|wanted| wanted.check(limits))
}

/// Continues plain text.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest, responses(
    (status = 200, body = Value),
    (status = 400, body = Value),
    (status = 404, body = Value),
    (status = 429, body = Value),
    (status = 503, body = Value),
))]
pub async fn completions(
    State(app): State<App>,
    caller: Caller,
    Json(mut asked): Json<CompletionRequest>,
) -> Result<Response> {
    let all = asked.wanted(app.limits())?;
    all.iter().try_for_each(|wanted| wanted.check(app.limits()))?;
    let lease = app.lease(asked.model.as_deref()).await?;
    let per_prompt = all.first().map_or(1, |wanted| wanted.n);
    let n = all.len() * per_prompt;
    let shape = Shape {
        echoes: asked.echo == Some(true),
        texts: all.iter().map(|wanted| wanted.input.clone()).collect(),
        per_prompt,
        logprobs: all.first().and_then(|wanted| wanted.logprobs),
    };
    let warnings = all.first().and_then(|wanted| fields::short_context(wanted, &lease));
    let mut answers = app.ask_all(&lease, caller.scope, all, &caller.trace).await?;
    let head = Head::new("cmpl-", lease.entry().name(), warnings.into_iter().collect());
    let shape = Shown { shape, asked: answers.asked.clone() };
    if asked.stream == Some(true) {
        answers.begin(PING).await?;
        let has_usage = asked.stream_options.unwrap_or_default().include_usage == Some(true);
        let usage = Usage::default();
        let teller = CompletionTeller {
            head,
            has_usage,
            usage,
            offsets: vec![0; n],
            request: caller.id.clone(),
            echoed: vec![vec![]; n],
            shape,
        };
        return Ok(events(tell(answers, n, false, teller)));
    }
    let all = whole(answers, n, false).await?;
    Ok(axum::Json(response(&head, &shape, all)).into_response())
}

/// What is told of each answer.
struct Shape {
    echoes: bool,
    texts: Vec<Input>,
    per_prompt: usize,
    logprobs: Option<usize>,
}

struct Shown {
    shape: Shape,
    asked: Asked,
}

impl Shown {
    fn model(&self) -> &Model {
        self.asked.lease.engine().model()
    }

    fn prompt(&self, answer: usize) -> Option<&Arc<Prompt>> {
        self.asked.prompts.get(answer / self.shape.per_prompt.max(1))
    }

    /// The prompt's text, if it is told.
    fn echo(&self, answer: usize) -> String {
        if !self.shape.echoes {
            return String::new();
        }
        match self.shape.texts.get(answer / self.shape.per_prompt.max(1)) {
            Some(Input::Text(text)) => text.clone(),
            Some(Input::Ids(ids)) => {
                self.model().tokenizer().map(|t| t.decode(ids, false)).unwrap_or_default()
            }
            _ => String::new(),
        }
    }

    /// Tokens of the prompt with what is known of them.
    fn echoed(&self, answer: usize, logprobs: &[Option<Logprobs>]) -> Vec<(u32, Option<Logprobs>)> {
        let tokens = self.prompt(answer).map(|p| p.tokens.clone()).unwrap_or_default();
        let known = logprobs.iter().cloned().chain(std::iter::repeat(None));
        tokens.into_iter().zip(known).collect()
    }

    /// Log-probabilities as this route has them; `offset` is where the text of the first token stands.
    fn logprobs(&self, tokens: &[(u32, Option<Logprobs>)], offset: &mut usize) -> Value {
        let (Some(top), Ok(tokenizer)) = (self.shape.logprobs, self.model().tokenizer()) else {
            return Value::Null;
        };
        let mut stream = tokenizer.stream(false);
        let (mut names, mut chosen, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        for (id, logprobs) in tokens {
            let name = |id: u32| tokenizer.decode(&[id], true);
            names.push(name(*id));
            chosen.push(logprobs.as_ref().map(|l| shapes::finite(l.logprob)));
            tops.push(match logprobs {
                Some(l) if top > 0 => {
                    let mut all: Map<String, Value> = Map::new();
                    for (id, logprob) in &l.top {
                        all.entry(name(*id)).or_insert(shapes::finite(*logprob).into());
                    }
                    Value::Object(all)
                }
                _ => Value::Null,
            });
            offsets.push(*offset);
            let mut text = String::new();
            stream.push(*id, &mut text);
            *offset += text.chars().count();
        }
        json!({"tokens": names, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets})
    }
}

/// The token that ended an answer. It has no text, but who counts tokens finds it: lm-eval takes the
/// last one away, whatever it is.
fn stopped(end: &End) -> Option<(u32, Option<Logprobs>)> {
    Some((end.finish.stop_id?, end.finish.stop_logprobs.clone()))
}

fn response(head: &Head, shown: &Shown, all: Vec<(Whole, End)>) -> Value {
    let mut usage = Usage::default();
    let mut timings = Value::Null;
    let mut choices = Vec::new();
    for (index, (whole, end)) in all.into_iter().enumerate() {
        match index % shown.shape.per_prompt.max(1) {
            0 => usage.add_prompt(&end),
            _ => usage.add_more(&end),
        }
        timings = shapes::timings(&end.finish.stats);
        let mut tokens = match shown.shape.echoes {
            true => shown.echoed(index, &whole.prompt_logprobs),
            false => vec![],
        };
        tokens.extend(whole.tokens.into_iter().map(|(id, l)| (id, Some(l))));
        tokens.extend(stopped(&end));
        let text = shown.echo(index) + &whole.text;
        choices.push(json!({
            "index": index,
            "text": text,
            "logprobs": shown.logprobs(&tokens, &mut 0),
            "finish_reason": shapes::finish_reason(end.reason),
        }));
    }
    let mut body = head.json("text_completion");
    body["choices"] = choices.into();
    body["usage"] = usage.json();
    body["timings"] = timings;
    head.warn(&mut body);
    body
}

/// Tells answers in chunks.
struct CompletionTeller {
    head: Head,
    shape: Shown,
    request: Arc<str>,
    has_usage: bool,
    usage: Usage,
    /// Where the next token's text stands, of each answer.
    offsets: Vec<usize>,
    /// What is known of the prompt's tokens, until it is told.
    echoed: Vec<Vec<Option<Logprobs>>>,
}

impl CompletionTeller {
    fn chunk(&self, index: usize, text: &str, logprobs: Value, finish: Option<&str>) -> Value {
        let mut chunk = self.head.json("text_completion");
        let choice =
            json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish});
        chunk["choices"] = json!([choice]);
        if self.has_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn logprobs(&mut self, answer: usize, tokens: &[(u32, Option<Logprobs>)]) -> Value {
        match self.offsets.get_mut(answer) {
            Some(offset) => self.shape.logprobs(tokens, offset),
            None => Value::Null,
        }
    }

    /// The prompt, before anything else of its answer.
    fn echo(&mut self, answer: usize, out: &mut Out) {
        let Some(known) = self.echoed.get_mut(answer).map(std::mem::take) else { return };
        let text = self.shape.echo(answer);
        let is_told = self.offsets.get(answer).is_some_and(|offset| *offset > 0);
        if text.is_empty() || is_told {
            return;
        }
        let tokens = self.shape.echoed(answer, &known);
        let logprobs = self.logprobs(answer, &tokens);
        if let Some(offset) = self.offsets.get_mut(answer) {
            *offset = (*offset).max(text.chars().count());
        }
        out.data(&self.chunk(answer, &text, logprobs, None));
    }
}

impl Teller for CompletionTeller {
    fn begin(&mut self, _: &mut Out) {}

    fn piece(&mut self, answer: usize, piece: Piece, out: &mut Out) {
        match piece {
            Piece::PromptLogprobs(tokens) => {
                if let Some(known) = self.echoed.get_mut(answer) {
                    known.extend(tokens);
                }
            }
            Piece::Text { text, tokens } => {
                self.echo(answer, out);
                let tokens: Vec<_> = tokens.into_iter().map(|(id, l)| (id, Some(l))).collect();
                let logprobs = self.logprobs(answer, &tokens);
                out.data(&self.chunk(answer, &text, logprobs, None));
            }
            Piece::End(end) => {
                self.echo(answer, out);
                match answer % self.shape.shape.per_prompt.max(1) {
                    0 => self.usage.add_prompt(&end),
                    _ => self.usage.add_more(&end),
                }
                let reason = shapes::finish_reason(end.reason);
                let logprobs = match stopped(&end) {
                    Some(token) => self.logprobs(answer, &[token]),
                    None => Value::Null,
                };
                let mut chunk = self.chunk(answer, "", logprobs, Some(reason));
                chunk["timings"] = shapes::timings(&end.finish.stats);
                self.head.warn(&mut chunk);
                out.data(&chunk);
            }
            _ => {}
        }
    }

    fn failed(&mut self, failure: &Failure, out: &mut Out) {
        out.data(&failure.body_json(Dialect::OpenAi, &self.request));
    }

    fn done(&mut self, out: &mut Out) {
        if self.has_usage {
            let mut chunk = self.head.json("text_completion");
            chunk["choices"] = json!([]);
            chunk["usage"] = self.usage.json();
            out.data(&chunk);
        }
        out.text("data: [DONE]\n\n");
    }
}
