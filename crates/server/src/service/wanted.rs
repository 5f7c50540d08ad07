//! What a request of any API wants, and what the library is asked for it.

use lapidary::{Grammar, Message, Model, Prompt, Request};
use serde_json::{Map, Value};

use super::Result;
use super::failure::Failure;
use super::limits::Limits;

pub use lapidary::Sampling;

/// What a request of any API wants.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// What is to be answered or continued.
    pub input: Input,
    /// How tokens are chosen. Further answers take the seeds after this one's.
    pub sampling: Sampling,
    /// The most tokens of the answer.
    pub max_tokens: Option<usize>,
    /// Tokens that prompt and answer may fill together, if fewer than the context.
    pub context: Option<usize>,
    /// Strings that end it.
    pub stop: Vec<String>,
    /// How many answers.
    pub n: usize,
    /// Whether log-probabilities are told, and of how many likeliest tokens.
    pub logprobs: Option<usize>,
    /// Whether log-probabilities of the prompt's tokens are told, and of how many likeliest ones.
    pub prompt_logprobs: Option<usize>,
    /// Whether the prompt's embedding is wanted instead of an answer.
    pub embeds: bool,
    /// Whether the model's own end is ignored.
    pub ignore_eos: bool,
    /// Whether the reading of the prompt is told.
    pub progress: bool,
}

/// What is to be answered or continued.
#[derive(Clone, Debug)]
pub enum Input {
    /// A conversation.
    Chat(Box<Chat>),
    /// Plain text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// A conversation, and what its answer may be.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// What was said.
    pub messages: Vec<Message>,
    /// Tools, as OpenAI declares them: `{"type": "function", "function": {…}}`.
    pub tools: Vec<Value>,
    /// Whether a tool is called.
    pub tool_choice: ToolChoice,
    /// Whether several calls may come at once.
    pub parallel_calls: bool,
    /// What the text of the answer is held to.
    pub format: Format,
    /// Whether and how long the model thinks.
    pub thinking: Effort,
    /// Further variables of the chat template.
    pub variables: Map<String, Value>,
}

/// Whether a tool is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// None is.
    None,
    /// At least one is.
    Required,
    /// This one is.
    Function(String),
}

/// What the text of an answer is held to.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Format {
    /// Nothing.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema(Value),
    /// Anything that the library has a grammar for.
    Grammar(Grammar),
}

/// Whether and how long a model thinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effort {
    /// As its template has it.
    #[default]
    Default,
    /// Not at all.
    Off,
    /// As long as it likes, or so many tokens.
    On {
        /// The most tokens of the thought.
        budget: Option<usize>,
    },
}

/// What some agents write first into their instructions, different in every request. It is meant for
/// Anthropic's accounting, and it would make every prompt begin like no other.
const BILLING: &str = "x-anthropic-billing-header:";

/// Instructions without the line that is for Anthropic's accounting. Agents send it to every API that
/// they are pointed at.
pub fn without_billing(text: &str) -> &str {
    match text.trim_start().starts_with(BILLING) {
        true => text.trim_start().split_once('\n').map_or("", |(_, rest)| rest.trim_start()),
        false => text,
    }
}

impl Wanted {
    /// One answer to this, as the model's makers recommend.
    pub fn new(input: Input) -> Self {
        Wanted {
            input,
            sampling: Sampling::default(),
            max_tokens: None,
            context: None,
            stop: vec![],
            n: 1,
            logprobs: None,
            prompt_logprobs: None,
            embeds: false,
            ignore_eos: false,
            progress: false,
        }
    }

    /// Checks what needs no model: how much of everything there is.
    pub fn check(&self, limits: &Limits) -> Result<()> {
        let most = |param: &str, n: usize, limit: usize| match n > limit {
            true => Err(Failure::param(param, format!("{n} are given and {limit} may be"))),
            false => Ok(()),
        };
        if self.n == 0 || self.n > limits.choices {
            let what = format!("{} is not within 1 to {}", self.n, limits.choices);
            return Err(Failure::param("n", what));
        }
        most("stop", self.stop.len(), limits.stops)?;
        for stop in &self.stop {
            if stop.is_empty() || stop.len() > limits.stop_bytes {
                let what = format!("a stop string has 1 to {} bytes", limits.stop_bytes);
                return Err(Failure::param("stop", what));
            }
        }
        most("logit_bias", self.sampling.logit_bias.len(), limits.logit_bias)?;
        if self.max_tokens == Some(0) && self.prompt_logprobs.is_none() {
            return Err(Failure::param("max_tokens", "0 tokens are no answer; ask for at least 1"));
        }
        if let Input::Chat(chat) = &self.input {
            if chat.messages.is_empty() {
                return Err(Failure::param("messages", "there must be at least one message"));
            }
            most("messages", chat.messages.len(), limits.messages)?;
            most("tools", chat.tools.len(), limits.tools)?;
            let shown = |m: &Message| {
                m.parts.iter().filter(|p| matches!(p, lapidary::Part::Media(_))).count()
            };
            most("messages", chat.messages.iter().map(shown).sum(), limits.media)
                .map_err(|e| e.about("images, videos and audio"))?;
            chat.check_tools(limits)?;
        }
        Ok(())
    }

    /// Whether calls are held to their schemas, so that one that begins becomes whole.
    pub fn holds_calls(&self) -> bool {
        match &self.input {
            Input::Chat(chat) => !chat.tools.is_empty() && chat.tool_choice != ToolChoice::None,
            _ => false,
        }
    }

    /// What the library is asked, with its prompt. A template that refuses messages that stand
    /// together is given them as one.
    pub fn prompted(&self, model: &Model, scope: u64) -> Result<(Request, Prompt)> {
        let request = self.request(model, scope)?;
        let refused = match request.prompt(model) {
            Ok(prompt) => return Ok((request.with_prompt(prompt.clone()), prompt)),
            Err(e @ lapidary::Error::Text(lapidary::text::Error::Refused(_))) => e,
            Err(e) => return Err(e.into()),
        };
        let Input::Chat(chat) = &self.input else { return Err(refused.into()) };
        let Some(chat) = chat.in_turns() else { return Err(refused.into()) };
        let other = Wanted { input: Input::Chat(Box::new(chat)), ..self.clone() };
        let request = other.request(model, scope)?;
        let prompt = request.prompt(model)?;
        Ok((request.with_prompt(prompt.clone()), prompt))
    }

    /// What the library is asked. The scope says whose cached tokens may be used.
    pub fn request(&self, model: &Model, scope: u64) -> Result<Request> {
        self.sampling.check(model.metadata())?;
        let mut request = match &self.input {
            Input::Chat(chat) => chat.request()?,
            Input::Text(text) => Request::text(text.clone()),
            Input::Ids(ids) => Request::ids(ids.clone(), vec![]),
        };
        request = request.sampling(self.sampling.clone()).stop(self.stop.clone()).scope(scope);
        if let Some(n) = self.max_tokens {
            request = request.max_tokens(n);
        }
        if let Some(top) = self.prompt_logprobs {
            request = request.prompt_logprobs(top);
        }
        if self.embeds {
            return Ok(request.embedding());
        }
        if self.ignore_eos {
            request = request.ignore_eos();
        }
        if self.progress {
            request = request.progress();
        }
        // Tokens are told for the times between them.
        Ok(match self.logprobs {
            Some(top) => request.logprobs(top),
            None => request.tokens(),
        })
    }
}

impl Chat {
    /// The same conversation for a template that wants the user and the assistant in turns and
    /// instructions first alone: what stands together is one message, and later instructions are the
    /// user's. `None` if it is like that already.
    fn in_turns(&self) -> Option<Chat> {
        let mut messages: Vec<Message> = Vec::new();
        for (i, message) in self.messages.iter().enumerate() {
            let mut message = message.clone();
            if message.role == "system" && i > 0 {
                message.role = "user".to_string();
            }
            match messages.last_mut() {
                Some(last) if last.role == message.role && last.role != "tool" => {
                    for part in message.parts.drain(..) {
                        match (last.parts.last_mut(), part) {
                            (Some(lapidary::Part::Text(said)), lapidary::Part::Text(more)) => {
                                said.push_str("\n\n");
                                said.push_str(&more);
                            }
                            (_, part) => last.parts.push(part),
                        }
                    }
                    last.tool_calls.append(&mut message.tool_calls);
                    last.thinking = message.thinking.or(last.thinking.take());
                }
                _ => messages.push(message),
            }
        }
        let is_changed = messages.len() != self.messages.len()
            || messages.iter().zip(&self.messages).any(|(a, b)| a.role != b.role);
        is_changed.then(|| Chat { messages, ..self.clone() })
    }

    fn check_tools(&self, limits: &Limits) -> Result<()> {
        let mut names: Vec<&str> = Vec::new();
        for (i, tool) in self.tools.iter().enumerate() {
            let name = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            if name.is_empty() || name.len() > 128 || !name.chars().all(is_plain) {
                let what = "a tool's name has 1 to 128 letters, digits, `_`, `-` and `.`";
                return Err(Failure::param(format!("tools[{i}].function.name"), what));
            }
            if names.contains(&name) {
                let what = format!("two tools are called `{name}`");
                return Err(Failure::param(format!("tools[{i}].function.name"), what));
            }
            names.push(name);
            if tool.to_string().len() > limits.schema_bytes {
                let what = format!("a tool has at most {} bytes", limits.schema_bytes);
                return Err(Failure::param(format!("tools[{i}]"), what));
            }
        }
        match &self.tool_choice {
            ToolChoice::Required if self.tools.is_empty() => {
                Err(Failure::param("tool_choice", "a tool must be called and none is declared"))
            }
            ToolChoice::Function(name) if !names.contains(&name.as_str()) => {
                let what = format!("`{name}` must be called and is not declared in `tools`");
                Err(Failure::param("tool_choice", what))
            }
            _ => Ok(()),
        }?;
        match &self.format {
            Format::JsonSchema(schema) if schema.to_string().len() > limits.schema_bytes => {
                let what = format!("a schema has at most {} bytes", limits.schema_bytes);
                Err(Failure::param("response_format", what))
            }
            _ => Ok(()),
        }
    }

    fn request(&self) -> Result<Request> {
        let mut request = Request::chat(self.messages.clone());
        let tools = match &self.tool_choice {
            ToolChoice::None => vec![],
            _ => self.tools.clone(),
        };
        match self.thinking {
            Effort::Default => {}
            Effort::Off => request = request.thinking(false),
            Effort::On { budget: None } => request = request.thinking(true),
            Effort::On { budget: Some(n) } => request = request.thinking_budget(n),
        }
        if let Some(grammar) = self.grammar()? {
            request = request.grammar(grammar);
        }
        Ok(request.tools(tools).template_variables(self.variables.clone()))
    }

    fn grammar(&self) -> Result<Option<Grammar>> {
        let calls = |tools: Vec<Value>, required: bool| Grammar::ToolCalls {
            tools,
            required,
            parallel: self.parallel_calls,
        };
        let format = match &self.format {
            Format::Text => None,
            Format::JsonObject => Some(Grammar::JsonObject),
            Format::JsonSchema(schema) => Some(Grammar::JsonSchema(schema.clone())),
            Format::Grammar(grammar) => Some(grammar.clone()),
        };
        let (tools, parallel) = (self.tools.clone(), self.parallel_calls);
        Ok(match (&self.tool_choice, format) {
            (ToolChoice::Required, _) => Some(calls(tools, true)),
            (ToolChoice::Function(name), _) => {
                let name = Value::from(name.as_str());
                let is_it = |t: &Value| t.pointer("/function/name") == Some(&name);
                Some(calls(tools.into_iter().filter(is_it).collect(), true))
            }
            (ToolChoice::None, None) if !tools.is_empty() => Some(Grammar::Text),
            (ToolChoice::Auto, None) if !tools.is_empty() => Some(calls(tools, false)),
            (ToolChoice::Auto, Some(format)) if !tools.is_empty() => {
                Some(Grammar::CallsOr { tools, parallel, otherwise: Box::new(format) })
            }
            (ToolChoice::Auto | ToolChoice::None, format) => format,
        })
    }
}
