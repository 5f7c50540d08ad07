//! How an answer is to be, and how a model is loaded: what Python says as JSON.

use std::time::Duration;

use lapidary::serde_json::{Map, Value};
use lapidary::{Draft, Grammar, KvType, Load, Open, Precision, Request, Sampling};
use serde::Deserialize;

use crate::error::{Failure, Result};

/// How an answer is to be. What is not given is as the model's makers recommend.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<u64>,
    logit_bias: Vec<(u32, f32)>,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    keep_special: bool,
    thinking: Option<bool>,
    thinking_budget: Option<usize>,
    tools: Vec<Value>,
    tool_choice: Value,
    parallel_tool_calls: bool,
    json_object: bool,
    schema: Option<Value>,
    regex: Option<String>,
    lark: Option<String>,
    deadline: Option<f64>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    progress: bool,
    template_variables: Map<String, Value>,
    scope: u64,
    image_tokens: Option<u32>,
    pan_and_scan: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            presence_penalty: None,
            frequency_penalty: None,
            seed: None,
            logit_bias: vec![],
            max_tokens: None,
            stop: vec![],
            stop_token_ids: vec![],
            ignore_eos: false,
            keep_special: false,
            thinking: None,
            thinking_budget: None,
            tools: vec![],
            tool_choice: Value::Null,
            parallel_tool_calls: true,
            json_object: false,
            schema: None,
            regex: None,
            lark: None,
            deadline: None,
            logprobs: None,
            prompt_logprobs: None,
            progress: false,
            template_variables: Map::new(),
            scope: 0,
            image_tokens: None,
            pan_and_scan: false,
        }
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    Never,
    Required,
    Function(String),
}

impl Options {
    pub(crate) fn read(json: &str) -> Result<Self> {
        lapidary::serde_json::from_str(json)
            .map_err(|e| Failure::argument(format!("an option is not as it should be: {e}")))
    }

    /// A request with all of them.
    pub(crate) fn refine(&self, request: Request) -> Result<Request> {
        let grammar = self.grammar()?;
        let mut request = request
            .sampling(Sampling {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: self.seed,
                logit_bias: self.logit_bias.clone(),
            })
            .stop(self.stop.clone())
            .stop_ids(self.stop_token_ids.clone())
            .scope(self.scope)
            .template_variables(self.template_variables.clone())
            .tokens();
        if self.choice()? != Choice::Never {
            request = request.tools(self.tools.clone());
        }
        if let Some(n) = self.max_tokens {
            request = request.max_tokens(n);
        }
        if self.ignore_eos {
            request = request.ignore_eos();
        }
        if self.keep_special {
            request = request.keep_special();
        }
        if let Some(on) = self.thinking {
            request = request.thinking(on);
        }
        if let Some(n) = self.thinking_budget {
            request = request.thinking_budget(n);
        }
        if let Some(grammar) = grammar {
            request = request.grammar(grammar);
        }
        if let Some(seconds) = self.deadline {
            let wrong = |_| Failure::argument(format!("a deadline of {seconds} s is none"));
            request = request.deadline(Duration::try_from_secs_f64(seconds).map_err(wrong)?);
        }
        if self.progress {
            request = request.progress();
        }
        if let Some(top) = self.logprobs {
            request = request.logprobs(top);
        }
        if let Some(top) = self.prompt_logprobs {
            request = request.prompt_logprobs(top);
        }
        Ok(request)
    }

    /// Something to show or play, as it is to be shown.
    pub(crate) fn shown(&self, mut media: lapidary::Media) -> lapidary::Media {
        if let Some(n) = self.image_tokens {
            media = media.image_tokens(n);
        }
        if self.pan_and_scan {
            media = media.pan_and_scan();
        }
        media
    }

    fn choice(&self) -> Result<Choice> {
        let name = self.tool_choice["function"]["name"].as_str();
        Ok(match (self.tool_choice.as_str(), name) {
            _ if self.tool_choice.is_null() => Choice::Auto,
            (Some("auto"), _) => Choice::Auto,
            (Some("none"), _) => Choice::Never,
            (Some("required"), _) => Choice::Required,
            (Some(name), _) | (None, Some(name)) => Choice::Function(name.to_string()),
            (None, None) => {
                let what = "tool_choice is `auto`, `none`, `required` or the name of a tool";
                return Err(Failure::argument(what));
            }
        })
    }

    /// What holds an answer, as the server does it, too.
    fn grammar(&self) -> Result<Option<Grammar>> {
        let parallel = self.parallel_tool_calls;
        let mut formats = vec![];
        if self.json_object {
            formats.push(Grammar::JsonObject);
        }
        formats.extend(self.schema.clone().map(Grammar::JsonSchema));
        formats.extend(self.regex.clone().map(Grammar::Regex));
        formats.extend(self.lark.clone().map(Grammar::Lark));
        if formats.len() > 1 {
            let what = "an answer is held to one of schema, regex and grammar, not to several";
            return Err(Failure::argument(what));
        }
        let format = formats.pop();
        let calls = |tools: Vec<Value>, required| Grammar::ToolCalls { tools, required, parallel };
        let tools = &self.tools;
        Ok(match (self.choice()?, format) {
            (Choice::Required, _) if tools.is_empty() => {
                return Err(Failure::argument("a tool must be called, but there are none"));
            }
            (Choice::Required, _) => Some(calls(tools.clone(), true)),
            (Choice::Function(name), _) => {
                let is_it = |tool: &&Value| tool["function"]["name"] == name.as_str();
                let it: Vec<Value> = tools.iter().filter(is_it).cloned().collect();
                if it.is_empty() {
                    let what = format!("the tool `{name}` must be called, but there is none");
                    return Err(Failure::argument(what));
                }
                Some(calls(it, true))
            }
            (_, format) if tools.is_empty() => format,
            (Choice::Never, format) => Some(format.unwrap_or(Grammar::Text)),
            (Choice::Auto, None) => Some(calls(tools.clone(), false)),
            (Choice::Auto, Some(format)) => Some(Grammar::CallsOr {
                tools: tools.clone(),
                parallel,
                otherwise: Box::new(format),
            }),
        })
    }
}

/// How a model is opened and loaded.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Loading {
    backend: Option<String>,
    device: Option<String>,
    context: Option<u32>,
    sequences: Option<u32>,
    kv: Option<String>,
    kv_memory: Option<u64>,
    precision: Option<String>,
    threads: Option<usize>,
    chunk: Option<u32>,
    text_only: bool,
    draft: Option<String>,
    pack_cache: Option<String>,
    queue: Option<usize>,
    mmproj: Option<String>,
    quant: Option<String>,
    no_mmap: bool,
}

/// Requests that may wait, unless told: batches in Python are long.
const QUEUE: usize = 4096;

impl Loading {
    pub(crate) fn read(json: &str) -> Result<Self> {
        lapidary::serde_json::from_str(json).map_err(|e| {
            Failure::argument(format!("an option of loading is not as it should be: {e}"))
        })
    }

    /// What guesses, and the drafter to open if it is in a file of its own.
    fn draft(&self) -> (Draft, Option<&str>) {
        match self.draft.as_deref() {
            None | Some("auto") => (Draft::Auto, None),
            Some("off") => (Draft::Off, None),
            Some("lookup") => (Draft::Lookup, None),
            Some("model") => (Draft::Model, None),
            Some(path) => (Draft::Model, Some(path)),
        }
    }

    pub(crate) fn open(&self) -> Open {
        let mut open = Open::new();
        match self.draft() {
            (_, Some(path)) => open = open.draft(path),
            (Draft::Auto | Draft::Model, None) => open = open.draft_beside(),
            _ => {}
        }
        if let Some(path) = &self.mmproj {
            open = open.mmproj(path);
        }
        if let Some(recipe) = &self.quant {
            open = open.quant(recipe);
        }
        if self.no_mmap {
            open = open.no_mmap();
        }
        open
    }

    pub(crate) fn load(&self) -> Result<Load> {
        // An answer that nobody reads grows to its end and no further, so it stops nobody.
        let mut load = Load::new().draft(self.draft().0).events(usize::MAX);
        load = load.queue(self.queue.unwrap_or(QUEUE));
        if let Some(name) = &self.backend {
            load = load.backend(name);
        }
        if let Some(device) = &self.device {
            load = load.device(device.parse().map_err(|e: String| Failure::argument(e))?);
        }
        if let Some(positions) = self.context {
            load = load.context(positions);
        }
        if let Some(n) = self.sequences {
            load = load.sequences(n);
        }
        if let Some(bytes) = self.kv_memory {
            load = load.kv_memory(bytes);
        }
        if let Some(kv) = &self.kv {
            load = load.kv_type(match kv.as_str() {
                "f32" => KvType::F32,
                "bf16" => KvType::Bf16,
                "int8" => KvType::Int8,
                _ => return Err(Failure::argument(format!("kv is f32, bf16 or int8, not `{kv}`"))),
            });
        }
        if let Some(precision) = &self.precision {
            load = load.precision(match precision.as_str() {
                "fast" => Precision::Fast,
                "exact" => Precision::Exact,
                _ => {
                    let what = format!("precision is fast or exact, not `{precision}`");
                    return Err(Failure::argument(what));
                }
            });
        }
        if let Some(n) = self.threads {
            load = load.threads(n);
        }
        if let Some(tokens) = self.chunk {
            load = load.chunk(tokens);
        }
        if self.text_only {
            load = load.text_only();
        }
        if let Some(folder) = &self.pack_cache {
            load = load.pack_cache((folder != "off").then(|| folder.into()));
        }
        Ok(load)
    }
}
