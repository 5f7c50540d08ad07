//! How an answer is to be.

use std::time::Duration;

use lapidary::serde_json::{self, Map, Value, json};
use lapidary::{Grammar, Media, Request, Sampling};

use crate::error::{LapidaryError, Result};
use crate::message::object;

/// How an answer is to be. What is not given is as the model's makers recommend.
#[derive(Clone, Debug, Default, PartialEq, uniffi::Record)]
pub struct AnswerOptions {
    /// 0 always takes the likeliest token.
    #[uniffi(default = None)]
    pub temperature: Option<f32>,
    /// Keeps the likeliest tokens; 0 keeps all.
    #[uniffi(default = None)]
    pub top_k: Option<u32>,
    /// Keeps the likeliest tokens that add up to this.
    #[uniffi(default = None)]
    pub top_p: Option<f32>,
    /// Keeps tokens at least this times as likely as the likeliest.
    #[uniffi(default = None)]
    pub min_p: Option<f32>,
    /// Divides the scores of tokens that were already there.
    #[uniffi(default = None)]
    pub repetition_penalty: Option<f32>,
    /// Taken once from the scores of tokens in the answer.
    #[uniffi(default = None)]
    pub presence_penalty: Option<f32>,
    /// Taken once per occurrence from the scores of tokens in the answer.
    #[uniffi(default = None)]
    pub frequency_penalty: Option<f32>,
    /// Same seed, same tokens; a random one if there is none.
    #[uniffi(default = None)]
    pub seed: Option<u64>,
    /// The most tokens of the answer; else as many as the context allows.
    #[uniffi(default = None)]
    pub max_tokens: Option<u32>,
    /// Strings that end the answer and are not part of it.
    #[uniffi(default = [])]
    pub stop: Vec<String>,
    /// Whether the model thinks first, where it can.
    #[uniffi(default = None)]
    pub thinking: Option<bool>,
    /// The most tokens that it thinks; 0 turns thinking off, any other number on.
    #[uniffi(default = None)]
    pub thinking_budget: Option<u32>,
    /// Tools that it may call.
    #[uniffi(default = [])]
    pub tools: Vec<Tool>,
    /// Whether it must or may call them; else it may.
    #[uniffi(default = None)]
    pub tool_choice: Option<ToolChoice>,
    /// Allows one call in an answer, not several.
    #[uniffi(default = false)]
    pub serial_tool_calls: bool,
    /// What the answer's text must be.
    #[uniffi(default = None)]
    pub format: Option<Format>,
    /// Ends the answer with what there is when so much time has passed.
    #[uniffi(default = None)]
    pub deadline_ms: Option<u64>,
    /// Tells how much of the prompt was read.
    #[uniffi(default = false)]
    pub progress: bool,
    /// Tells every token.
    #[uniffi(default = false)]
    pub tokens: bool,
    /// Tells every token with its log-probability, and with those of so many likeliest.
    #[uniffi(default = None)]
    pub logprobs: Option<u32>,
    /// Soft tokens of an image, at most, where the model lets you choose.
    #[uniffi(default = None)]
    pub image_tokens: Option<u32>,
    /// Shows long images whole and in crops, where the model knows crops.
    #[uniffi(default = false)]
    pub pan_and_scan: bool,
    /// Further variables of the chat template: a JSON object.
    #[uniffi(default = None)]
    pub template_variables: Option<String>,
    /// Only answers of the same scope share cached tokens.
    #[uniffi(default = 0)]
    pub scope: u64,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// Its parameters: a JSON schema.
    pub parameters: String,
    /// Refuses a schema that no answer can be held to, instead of leaving parts of it out.
    #[uniffi(default = false)]
    pub strict: bool,
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum ToolChoice {
    /// They may be.
    Auto,
    /// They are not.
    Never,
    /// One must be.
    Required,
    /// This one must be.
    Function {
        /// Its name.
        name: String,
    },
}

/// What the text of an answer must be.
#[derive(Clone, Debug, PartialEq, Eq, uniffi::Enum)]
pub enum Format {
    /// Anything.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that a schema accepts.
    JsonSchema {
        /// The schema, as JSON.
        schema: String,
    },
    /// Text that a regular expression matches as a whole.
    Regex {
        /// The expression, in the syntax of Rust's crate `regex`.
        pattern: String,
    },
    /// Text of a grammar.
    Lark {
        /// The grammar, in llguidance's variant of Lark.
        grammar: String,
    },
}

/// Options that were read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    options: AnswerOptions,
    /// As they stand in the prompt.
    tools: Vec<Value>,
    grammar: Option<Grammar>,
    variables: Map<String, Value>,
}

impl Wishes {
    /// Reads options.
    pub(crate) fn of(options: AnswerOptions) -> Result<Self> {
        let declared = options.tools.iter().map(declaration).collect::<Result<Vec<_>>>()?;
        let grammar = grammar(&options, &declared)?;
        let variables = options.template_variables.as_deref().unwrap_or_default();
        let variables = object(variables, "variables of the template")?;
        let tools = if options.tool_choice == Some(ToolChoice::Never) { vec![] } else { declared };
        Ok(Wishes { options, tools, grammar, variables })
    }

    pub(crate) fn options(&self) -> &AnswerOptions {
        &self.options
    }

    /// A request with all of them.
    pub(crate) fn refine(&self, request: Request) -> Request {
        let o = &self.options;
        let mut request = request
            .sampling(Sampling {
                temperature: o.temperature,
                top_k: o.top_k,
                top_p: o.top_p,
                min_p: o.min_p,
                repetition_penalty: o.repetition_penalty,
                presence_penalty: o.presence_penalty,
                frequency_penalty: o.frequency_penalty,
                seed: o.seed,
                logit_bias: vec![],
            })
            .stop(o.stop.clone())
            .scope(o.scope)
            .tools(self.tools.clone())
            .template_variables(self.variables.clone());
        if let Some(n) = o.max_tokens {
            request = request.max_tokens(n as usize);
        }
        if let Some(on) = o.thinking {
            request = request.thinking(on);
        }
        if let Some(n) = o.thinking_budget {
            request = request.thinking_budget(n as usize);
        }
        if let Some(grammar) = &self.grammar {
            request = request.grammar(grammar.clone());
        }
        if let Some(ms) = o.deadline_ms {
            request = request.deadline(Duration::from_millis(ms));
        }
        if o.progress {
            request = request.progress();
        }
        if o.tokens {
            request = request.tokens();
        }
        if let Some(top) = o.logprobs {
            request = request.logprobs(top as usize);
        }
        request
    }

    /// Something to show or play, as it is to be shown.
    pub(crate) fn media(&self, mut media: Media) -> Media {
        if let Some(n) = self.options.image_tokens {
            media = media.image_tokens(n);
        }
        if self.options.pan_and_scan {
            media = media.pan_and_scan();
        }
        media
    }
}

/// A tool as OpenAI writes it.
fn declaration(tool: &Tool) -> Result<Value> {
    let what = format!("the parameters of the tool `{}`", tool.name);
    let mut function = json!({
        "name": tool.name,
        "description": tool.description,
        "parameters": object(&tool.parameters, &what)?,
    });
    if tool.strict {
        function["strict"] = Value::Bool(true);
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// What holds an answer, as the server does it, too.
fn grammar(options: &AnswerOptions, tools: &[Value]) -> Result<Option<Grammar>> {
    let parallel = !options.serial_tool_calls;
    let format = match &options.format {
        None | Some(Format::Text) => None,
        Some(Format::JsonObject) => Some(Grammar::JsonObject),
        Some(Format::JsonSchema { schema }) => {
            let wrong = |e| LapidaryError::argument(format!("the schema must be JSON: {e}"));
            Some(Grammar::JsonSchema(serde_json::from_str(schema).map_err(wrong)?))
        }
        Some(Format::Regex { pattern }) => Some(Grammar::Regex(pattern.clone())),
        Some(Format::Lark { grammar }) => Some(Grammar::Lark(grammar.clone())),
    };
    let calls = |tools: Vec<Value>, required| Grammar::ToolCalls { tools, required, parallel };
    let choice = options.tool_choice.as_ref().unwrap_or(&ToolChoice::Auto);
    Ok(match (choice, format) {
        (ToolChoice::Required | ToolChoice::Function { .. }, _) if tools.is_empty() => {
            return Err(LapidaryError::argument("a tool must be called, but there are none"));
        }
        (ToolChoice::Required, _) => Some(calls(tools.to_vec(), true)),
        (ToolChoice::Function { name }, _) => {
            let is_it = |tool: &&Value| tool["function"]["name"] == name.as_str();
            let it: Vec<Value> = tools.iter().filter(is_it).cloned().collect();
            if it.is_empty() {
                let what = format!("the tool `{name}` must be called, but there is none");
                return Err(LapidaryError::argument(what));
            }
            Some(calls(it, true))
        }
        (_, format) if tools.is_empty() => format,
        (ToolChoice::Never, format) => Some(format.unwrap_or(Grammar::Text)),
        (ToolChoice::Auto, None) => Some(calls(tools.to_vec(), false)),
        (ToolChoice::Auto, Some(format)) => {
            let (tools, otherwise) = (tools.to_vec(), Box::new(format));
            Some(Grammar::CallsOr { tools, parallel, otherwise })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorCode;

    fn tool(name: &str) -> Tool {
        let parameters = r#"{"type": "object"}"#.to_string();
        Tool { name: name.into(), description: "d".into(), parameters, strict: false }
    }

    fn with(choice: Option<ToolChoice>, format: Option<Format>) -> Result<Option<Grammar>> {
        let tools = vec![tool("f"), tool("g")];
        let options = AnswerOptions { tools, tool_choice: choice, format, ..Default::default() };
        Ok(Wishes::of(options)?.grammar)
    }

    #[test]
    fn tools_and_formats_hold_the_answer() {
        let json = || Some(Format::JsonObject);
        assert!(matches!(
            with(None, None).unwrap(),
            Some(Grammar::ToolCalls { required: false, parallel: true, .. })
        ));
        assert_eq!(with(Some(ToolChoice::Never), None).unwrap(), Some(Grammar::Text));
        assert_eq!(with(Some(ToolChoice::Never), json()).unwrap(), Some(Grammar::JsonObject));
        assert!(matches!(with(None, json()).unwrap(), Some(Grammar::CallsOr { .. })));
        let one = with(Some(ToolChoice::Function { name: "g".into() }), None).unwrap();
        let Some(Grammar::ToolCalls { tools, required: true, .. }) = one else { panic!("{one:?}") };
        assert_eq!(tools.len(), 1);
        assert_eq!(tools[0]["function"]["name"], "g");
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words() {
        let none = AnswerOptions { tool_choice: Some(ToolChoice::Required), ..Default::default() };
        let schema = Format::JsonSchema { schema: "{".into() };
        let variables =
            AnswerOptions { template_variables: Some("1".into()), ..Default::default() };
        let broken = Tool { parameters: "[]".into(), ..tool("f") };
        let all = [
            with(Some(ToolChoice::Function { name: "h".into() }), None).map(drop),
            with(None, Some(schema)).map(drop),
            Wishes::of(none).map(drop),
            Wishes::of(variables).map(drop),
            Wishes::of(AnswerOptions { tools: vec![broken], ..Default::default() }).map(drop),
        ];
        for wrong in all {
            let LapidaryError::Failed { code, reason } = wrong.unwrap_err();
            assert_eq!(code, ErrorCode::InvalidArgument, "{reason}");
        }
    }
}
