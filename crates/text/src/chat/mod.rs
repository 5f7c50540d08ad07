//! Conversations to text, by the template that the program carries.
//!
//! Templates are written for Jinja as `transformers` sets it up; this is minijinja with the
//! differences evened out (see `python.rs`). A template can reach nothing but what it is given:
//! there is no loader, no file, no attribute of a host object.
//!
//! Any file brings one, so what it may do is bounded: the nesting of its syntax before it is parsed
//! (`depth.rs`), the size and depth of every value as it is made, all memory and time together
//! (`value.rs`), and the stack, by running it on a thread of its own (`machine.rs`, `room.rs`).

mod calls;
mod depth;
mod expression;
mod guard;
mod machine;
mod message;
mod python;
mod room;
pub(crate) mod tools;
mod value;

use std::sync::Arc;

use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error as JinjaError, UndefinedBehavior};
use serde_json::{Map, Value};

pub use message::{Content, FunctionCall, Message, Part, ToolCall};

use lapidary_program::{Program, blob};

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use guard::{Guarded, Markers};
use machine::Machine;
use value::{Fail, Meter, Run};

/// Bytes of a template; the longest published ones have some 20 KB.
const MAX_TEMPLATE: usize = 1 << 20;

const NAME: &str = "chat_template";

/// Names that a caller may not set through `kwargs`.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "raise_exception",
    "strftime_now",
    "range",
    "dict",
    "namespace",
    "debug",
    "loop",
    "self",
    "caller",
    "varargs",
    "kwargs",
    "super",
];

/// A compiled chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    /// String literals that the template looks for in its variables.
    looked_for: Vec<String>,
    names: TokenNames,
}

/// Spellings of the tokens that templates refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenNames {
    /// `bos_token`.
    pub bos: Option<String>,
    /// `eos_token`.
    pub eos: Option<String>,
    /// `pad_token`.
    pub pad: Option<String>,
    /// `unk_token`.
    pub unk: Option<String>,
}

/// What is rendered. By default the text ends where the model's answer begins.
#[derive(Clone, Debug)]
pub struct ChatInput<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Tool declarations, as OpenAI writes them.
    pub tools: &'a [Value],
    /// Further variables such as `enable_thinking`; reserved names are refused.
    pub kwargs: Map<String, Value>,
    /// Whether the text ends where the model's answer begins.
    pub add_generation_prompt: bool,
}

impl Default for ChatInput<'_> {
    fn default() -> Self {
        ChatInput { messages: &[], tools: &[], kwargs: Map::new(), add_generation_prompt: true }
    }
}

/// Rendered text, in which user content can't be taken for control tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    guarded: String,
    guard: Option<char>,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str, names: TokenNames) -> Result<Self> {
        if source.len() > MAX_TEMPLATE {
            return Err(Error::TemplateLimit { what: "its own size" });
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(depth::template_error)?);
        // Debug information of errors would hold the user's text.
        env.set_debug(false);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        room::run(|room| {
            depth::check(source, env.syntax().clone(), room.nesting)?;
            parse(source, NAME, env.syntax().clone()).map_err(depth::template_error).map(drop)
        })?;
        let looked_for = guard::looked_for(source);
        Ok(ChatTemplate { env, source: source.to_string(), looked_for, names })
    }

    /// Renders a conversation. With the tokenizer, user content is guarded.
    pub fn render(&self, input: &ChatInput<'_>, tokenizer: Option<&Tokenizer>) -> Result<Rendered> {
        if let Some(name) = input.kwargs.keys().find(|k| RESERVED.contains(&k.as_str())) {
            return Err(Error::param("chat_template_kwargs", format!("`{name}` is reserved")));
        }
        let messages: Vec<Value> = input.messages.iter().map(Message::to_value).collect();
        let tools = match input.tools {
            [] => Value::Null,
            tools => Value::Array(tools.to_vec()),
        };
        let mut context = Guarded {
            values: vec![
                ("messages".to_string(), Value::Array(messages)),
                ("tools".to_string(), tools),
            ],
            markers: self.markers(tokenizer),
        };
        context.values.extend(input.kwargs.iter().map(|(k, v)| (k.clone(), v.clone())));
        let guard = match tokenizer {
            Some(tokenizer) => Some(context.protect(tokenizer)?),
            None => None,
        };
        let mut values: Map<String, Value> = context.values.into_iter().collect();
        values.insert("add_generation_prompt".into(), input.add_generation_prompt.into());
        values.insert("documents".into(), Value::Null);
        let names = [
            ("bos_token", &self.names.bos),
            ("eos_token", &self.names.eos),
            ("pad_token", &self.names.pad),
            ("unk_token", &self.names.unk),
        ];
        for (name, spelling) in names {
            if let Some(s) = spelling {
                values.insert(name.into(), s.as_str().into());
            }
        }
        Ok(Rendered { guarded: self.run(&values)?, guard: guard.map(|g| g.char()) })
    }

    fn markers(&self, tokenizer: Option<&Tokenizer>) -> Markers<'_> {
        let literals = self.looked_for.iter().map(String::as_str);
        Markers(match tokenizer {
            Some(t) => literals.filter(|l| t.specials().any(|(s, _)| s == *l)).collect(),
            None => vec![],
        })
    }

    fn run(&self, values: &Map<String, Value>) -> Result<String> {
        room::run(|room| {
            depth::check(&self.source, self.env.syntax().clone(), room.nesting)?;
            let template = parse(&self.source, NAME, self.env.syntax().clone());
            let template = template.map_err(depth::template_error)?;
            let (bytes, entries) =
                values.values().map(value::measure).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            let mut meter = Meter::new(bytes, entries);
            let context = values.iter().map(|(name, v)| Ok((name.clone(), meter.given(v)?)));
            let context = context.collect::<Run<_>>().map_err(render_error)?;
            let machine = Machine::new(&self.env, context, meter, room.depth);
            machine.render(&template).map_err(render_error)
        })
    }
}

impl TokenNames {
    /// The spellings that a tokenizer has for a program's tokens.
    pub fn of(metadata: &lapidary_program::Metadata, tokenizer: &Tokenizer) -> Self {
        let name = |id: Option<u32>| id.and_then(|id| tokenizer.token(id)).map(str::to_string);
        TokenNames {
            bos: name(metadata.bos_id),
            eos: name(metadata.eos_ids.first().copied()),
            pad: name(metadata.pad_id),
            unk: name(tokenizer.unk_id()),
        }
    }
}

impl Rendered {
    /// The text, as people see it.
    pub fn text(&self) -> String {
        match self.guard {
            Some(g) => self.guarded.replace(g, ""),
            None => self.guarded.clone(),
        }
    }

    /// The text with its guards.
    pub(crate) fn guarded(&self) -> &str {
        &self.guarded
    }

    /// The character that keeps user content from being taken for control tokens.
    pub(crate) fn guard(&self) -> Option<char> {
        self.guard
    }

    /// Its tokens.
    pub fn encode(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        tokenizer.encode_template(&self.guarded, self.guard)
    }
}

/// Compiles the program's chat template, if it has one.
pub fn load_template(
    program: &Program,
    tokenizer: Option<&Tokenizer>,
) -> Result<Option<ChatTemplate>> {
    let Some(bytes) = program.blob(blob::CHAT_TEMPLATE)? else { return Ok(None) };
    let source = std::str::from_utf8(bytes)
        .map_err(|_| Error::Program("the chat template is not UTF-8".to_string()))?;
    let names = tokenizer.map(|t| TokenNames::of(program.metadata(), t)).unwrap_or_default();
    ChatTemplate::new(source, names).map(Some)
}

fn render_error(e: Fail) -> Error {
    match e {
        Fail::Known(e) => e,
        Fail::Jinja(e, None) => Error::Render(Arc::new(e)),
        Fail::Jinja(e, Some(line)) => {
            let what = match e.detail() {
                Some(detail) => format!("{detail} (line {line})"),
                None => format!("line {line}"),
            };
            Error::Render(Arc::new(JinjaError::new(e.kind(), what)))
        }
    }
}

#[cfg(test)]
mod tests;
