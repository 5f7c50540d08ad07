//! What is asked of an engine.

use std::time::Duration;

use lapidary_program::Metadata;
use lapidary_runner::SamplingParams;
use lapidary_text::{ChatInput, Grammar, Prompt};
use serde_json::{Map, Value};

use crate::error::Result;
use crate::history::check_history;
use crate::media::Media;
use crate::message::{Message, rendered};
use crate::model::Model;

/// One answer that is wanted.
///
/// ```no_run
/// # let engine = lapidary::Model::pebble()?.load(lapidary::Load::default())?;
/// use lapidary::{Message, Request};
/// let request = Request::chat(vec![Message::user("What is 2 + 2?")]).max_tokens(20).seed(1);
/// println!("{}", engine.answer(request)?.text()?);
/// # Ok::<(), lapidary::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) input: Input,
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) keep_special: bool,
    pub(crate) is_parsed: bool,
    pub(crate) scope: u64,
    pub(crate) tokens: bool,
    pub(crate) logprobs: Option<usize>,
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) embed: bool,
    pub(crate) thinking_budget: Option<usize>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) progress: bool,
    pub(crate) grammar: Option<Grammar>,
    /// Whether the prompt that was made asks for a thought.
    may_think: bool,
    /// Before the numbers of tool calls, so that their ids are unique in a conversation.
    pub(crate) call_prefix: String,
}

#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// Plain text after media.
    Text { media: Vec<Media>, text: String },
    /// Ids, with media for those that stand for soft tokens.
    Tokens { ids: Vec<u32>, media: Vec<Media> },
    /// A conversation.
    Chat(Chat),
    /// Made by the caller.
    Prompt(Prompt),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<Value>,
    pub(crate) thinking: Option<bool>,
    pub(crate) kwargs: Map<String, Value>,
}

/// How tokens are chosen; what is not given is as the model's makers recommend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// 0 always takes the likeliest token.
    pub temperature: Option<f32>,
    /// Keeps the likeliest tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keeps the likeliest tokens that add up to this.
    pub top_p: Option<f32>,
    /// Keeps tokens at least this times as likely as the likeliest.
    pub min_p: Option<f32>,
    /// Divides the scores of tokens that were already there.
    pub repetition_penalty: Option<f32>,
    /// Taken once from the scores of tokens in the answer.
    pub presence_penalty: Option<f32>,
    /// Taken once per occurrence from the scores of tokens in the answer.
    pub frequency_penalty: Option<f32>,
    /// Same seed, same tokens; a random one if there is none.
    pub seed: Option<u64>,
    /// Added to the scores of tokens.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Sampling {
    /// The likeliest token, always.
    pub fn greedy() -> Self {
        let own = SamplingParams::greedy();
        Sampling {
            temperature: Some(own.temperature),
            top_k: Some(own.top_k),
            top_p: Some(own.top_p),
            ..Sampling::default()
        }
    }

    /// All of it, for one model.
    pub fn params(&self, metadata: &Metadata) -> SamplingParams {
        let own = SamplingParams::of(metadata);
        SamplingParams {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k: self.top_k.unwrap_or(own.top_k),
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(own.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(own.frequency_penalty),
            seed: self.seed,
            logit_bias: self.logit_bias.clone(),
            suppress: own.suppress,
        }
    }

    /// Checks every number against its range.
    pub fn check(&self, metadata: &Metadata) -> Result<()> {
        Ok(self.params(metadata).check(metadata.vocab_size)?)
    }
}

impl From<SamplingParams> for Sampling {
    fn from(params: SamplingParams) -> Self {
        Sampling {
            temperature: Some(params.temperature),
            top_k: Some(params.top_k),
            top_p: Some(params.top_p),
            min_p: Some(params.min_p),
            repetition_penalty: Some(params.repetition_penalty),
            presence_penalty: Some(params.presence_penalty),
            frequency_penalty: Some(params.frequency_penalty),
            seed: params.seed,
            logit_bias: params.logit_bias,
        }
    }
}

impl Request {
    /// Continues plain text, without a chat template.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Input::Text { media: vec![], text: text.into() })
    }

    /// Continues plain text after media, without a chat template.
    pub fn text_after(media: Vec<Media>, text: impl Into<String>) -> Self {
        Self::new(Input::Text { media, text: text.into() })
    }

    /// Continues token ids. Media take the place of the ids of soft tokens, in order.
    pub fn ids(ids: Vec<u32>, media: Vec<Media>) -> Self {
        Self::new(Input::Tokens { ids, media })
    }

    /// Answers a conversation.
    pub fn chat(messages: Vec<Message>) -> Self {
        let chat = Chat { messages, ..Chat::default() };
        Request { is_parsed: true, ..Self::new(Input::Chat(chat)) }
    }

    /// Answers a prompt that [`Request::prompt`] or a [`lapidary_text::PromptBuilder`] made.
    pub fn of_prompt(prompt: impl Into<Prompt>) -> Self {
        Self::new(Input::Prompt(prompt.into()))
    }

    fn new(input: Input) -> Self {
        Request {
            input,
            sampling: Sampling::default(),
            max_tokens: usize::MAX,
            stop: vec![],
            stop_ids: vec![],
            ignore_eos: false,
            keep_special: false,
            is_parsed: false,
            scope: 0,
            tokens: false,
            logprobs: None,
            prompt_logprobs: None,
            embed: false,
            thinking_budget: None,
            deadline: None,
            progress: false,
            grammar: None,
            may_think: false,
            call_prefix: String::new(),
        }
    }

    /// The same with the prompt that [`Self::prompt`] made of it, which is not made again.
    pub fn with_prompt(mut self, prompt: Prompt) -> Self {
        self.may_think = self.may_think();
        self.input = Input::Prompt(prompt);
        self
    }

    /// Whether the model was asked to think.
    pub(crate) fn may_think(&self) -> bool {
        self.may_think || matches!(&self.input, Input::Chat(Chat { thinking: Some(true), .. }))
    }

    fn chat_mut(&mut self) -> Option<&mut Chat> {
        match &mut self.input {
            Input::Chat(chat) => Some(chat),
            _ => None,
        }
    }

    /// Tools that a conversation's model may call, as OpenAI writes them.
    pub fn tools(mut self, tools: Vec<Value>) -> Self {
        if let Some(chat) = self.chat_mut() {
            chat.tools = tools;
        }
        self
    }

    /// Whether a conversation's model thinks first, where its chat template can.
    pub fn thinking(mut self, on: bool) -> Self {
        if let Some(chat) = self.chat_mut() {
            chat.thinking = Some(on);
        }
        self
    }

    /// The most tokens that a conversation's model thinks: then its thought is ended, and it answers.
    /// 0 turns thinking off, any other number on, where its chat template can. Without this, a model
    /// that thinks leaves a quarter of [`Self::max_tokens`] for its answer, and with this no less.
    pub fn thinking_budget(mut self, n: usize) -> Self {
        self.thinking_budget = Some(n);
        self.thinking(n > 0)
    }

    /// Further variables of the chat template.
    pub fn template_variables(mut self, variables: Map<String, Value>) -> Self {
        if let Some(chat) = self.chat_mut() {
            chat.kwargs = variables;
        }
        self
    }

    /// How tokens are chosen.
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// 0 always takes the likeliest token.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.sampling.temperature = Some(temperature);
        self
    }

    /// Same seed, same tokens, alone or in a batch.
    pub fn seed(mut self, seed: u64) -> Self {
        self.sampling.seed = Some(seed);
        self
    }

    /// The most tokens of the answer; by default as many as the context allows.
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = n;
        self
    }

    /// Strings that end the answer and are not part of it.
    pub fn stop(mut self, stop: Vec<String>) -> Self {
        self.stop = stop;
        self
    }

    /// Tokens that end the answer, besides the model's own.
    pub fn stop_ids(mut self, ids: Vec<u32>) -> Self {
        self.stop_ids = ids;
        self
    }

    /// Takes the model's own end tokens for tokens like others.
    pub fn ignore_eos(mut self) -> Self {
        self.ignore_eos = true;
        self
    }

    /// Spells out special tokens in the text.
    pub fn keep_special(mut self) -> Self {
        self.keep_special = true;
        self
    }

    /// Whether thinking and tool calls are told from text; by default so for conversations. Else all
    /// is text.
    pub fn parsed(mut self, parsed: bool) -> Self {
        self.is_parsed = parsed;
        self
    }

    /// Only requests of the same scope share cached tokens.
    pub fn scope(mut self, scope: u64) -> Self {
        self.scope = scope;
        self
    }

    /// Holds the answer to a grammar: a JSON schema, a regular expression, calls of tools. A model that
    /// was asked to think may do so before.
    pub fn grammar(mut self, grammar: Grammar) -> Self {
        self.grammar = Some(grammar);
        self
    }

    /// Tells every token.
    pub fn tokens(mut self) -> Self {
        self.tokens = true;
        self
    }

    /// Tells every token with its log-probability, and with those of the `top` likeliest.
    pub fn logprobs(mut self, top: usize) -> Self {
        self.logprobs = Some(top);
        self
    }

    /// Tells every token of the prompt with its log-probability after those before it, and with those
    /// of the `top` likeliest. Nothing of the prompt is taken from the caches then, and the answer may
    /// have 0 tokens.
    pub fn prompt_logprobs(mut self, top: usize) -> Self {
        self.prompt_logprobs = Some(top);
        self
    }

    /// Asks for the prompt's embedding instead of an answer; see [`crate::Engine::embed`].
    pub fn embedding(mut self) -> Self {
        self.embed = true;
        self
    }

    /// Ends the answer with what there is when so much time has passed since it was asked for; its
    /// [`crate::FinishReason`] is then `Deadline`.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = Some(after);
        self
    }

    /// Tells how much of the prompt was read.
    pub fn progress(mut self) -> Self {
        self.progress = true;
        self
    }

    /// Tokens and media of the prompt: renders, tokenises and decodes on this thread.
    pub fn prompt(&self, model: &Model) -> Result<Prompt> {
        let program = model.program();
        let ready = |media: &[Media]| {
            let one = |m: &Media| Ok(m.ready(program)?.medium.clone());
            media.iter().map(one).collect::<Result<Vec<_>>>()
        };
        match &self.input {
            Input::Prompt(prompt) => Ok(prompt.clone()),
            Input::Text { media, text } => {
                model.tokenizer()?;
                Ok(model.prompts().media_prompt(&ready(media)?, text)?)
            }
            Input::Tokens { ids, media } => {
                Ok(model.prompts().ids_prompt(ids.clone(), &ready(media)?)?)
            }
            Input::Chat(chat) => {
                check_history(&chat.messages)?;
                model.template()?;
                let (messages, media) = rendered(&chat.messages, program)?;
                let mut kwargs = chat.kwargs.clone();
                if let Some(on) = chat.thinking {
                    kwargs.insert("enable_thinking".into(), Value::Bool(on));
                }
                let input = ChatInput {
                    messages: &messages,
                    tools: &chat.tools,
                    kwargs,
                    ..ChatInput::default()
                };
                Ok(model.prompts().chat_prompt(&input, &media)?)
            }
        }
    }
}
