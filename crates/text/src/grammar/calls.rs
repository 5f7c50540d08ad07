//! Calls of tools as a Lark grammar.

use std::collections::BTreeSet;

use lapidary_program::{CallFormat, CallSyntax};
use serde_json::{Map, Value, json};

use super::braces::{ANY_OBJECT, Rules};
use super::{MAX_BYTES, MAX_CALLS, MAX_TOOLS, TEXT, keywords};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// A tool, as a request declares it.
struct Tool<'a> {
    name: &'a str,
    /// The schema of its arguments.
    parameters: Option<&'a Value>,
    is_strict: bool,
}

/// What an answer with calls is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Whether there must be a call.
    pub(super) required: bool,
    /// Whether there may be several.
    pub(super) parallel: bool,
    /// Whether arguments are held to all of every schema, or it is an error.
    pub(super) exact: bool,
}

/// What of tools that are not strict is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// As much of their schemas as can be.
    Declared,
    /// Their names.
    Names,
}

/// Whether a declaration asks for arguments that always fit its schema.
pub(super) fn is_strict(tool: &Value) -> bool {
    tool.get("function").unwrap_or(tool).get("strict") == Some(&Value::Bool(true))
}

/// The grammar of answers that call these tools.
pub(super) fn lark(
    tools: &[Value],
    Kind { required, parallel, exact }: Kind,
    hold: Hold,
    format: &CallFormat,
    tokenizer: &Tokenizer,
) -> Result<String> {
    let tools = declared(tools)?;
    let most = if parallel { MAX_CALLS } else { 1 };
    let (open, close) = (marker(&format.open, tokenizer), marker(&format.close, tokenizer));
    let mut lark = match &format.syntax {
        CallSyntax::Braces { prefix, quote } => {
            let quote = marker(quote, tokenizer);
            let (mut rules, mut names) = (Rules::new(quote), Vec::new());
            for (i, tool) in tools.iter().enumerate() {
                let arguments = match (exact || tool.is_strict, hold) {
                    (true, _) => rules.arguments(tool.parameters, true)?,
                    (false, Hold::Declared) => rules.arguments(tool.parameters, false)?,
                    (false, Hold::Names) => ANY_OBJECT.to_string(),
                };
                rules.rule(&format!("tool{i}"), &format!("{} {arguments}", literal(tool.name)));
                names.push(format!("tool{i}"));
            }
            let call = format!("{open} {} ({}) {close}", literal(prefix), names.join(" | "));
            let calls = format!("({call}){{1,{most}}}");
            let start = match (required, tokenizer.added_id(&format.open)) {
                (true, _) => calls,
                (false, Some(_)) => format!("TEXT? ({calls})?"),
                // Letters can't be told from text.
                (false, None) => "TEXT?".to_string(),
            };
            format!("start: {start}\n{}", rules.finish())
        }
        CallSyntax::Code if !required => "start: TEXT?\n".to_string(),
        CallSyntax::Code => {
            let mut rules = String::new();
            let mut names = Vec::new();
            for (i, tool) in tools.iter().enumerate() {
                let call = match json_call(tool, hold == Hold::Names) {
                    Err(Error::SchemaKeyword { .. }) if !exact && !tool.is_strict => {
                        json_call(tool, true)?
                    }
                    call => call?,
                };
                rules += &format!("tool{i}: %json {call}\n");
                names.push(format!("tool{i}"));
            }
            let call = format!("({})", names.join(" | "));
            let more = most.saturating_sub(1);
            format!("start: {open} {call} (\"\\n\" {call}){{0,{more}}} {close}\n{rules}")
        }
    };
    lark += TEXT;
    match lark.len() {
        n if n > 4 * MAX_BYTES => {
            Err(Error::Grammar(format!("the tools make a grammar of {n} bytes; declare fewer")))
        }
        _ => Ok(lark),
    }
}

/// A Lark literal.
pub(super) fn literal(text: &str) -> String {
    // Its strings are those of JSON, less one control character.
    Value::String(text.to_string()).to_string().replace('\u{7f}', "\\u007f")
}

/// A marker: its token, or its letters.
fn marker(text: &str, tokenizer: &Tokenizer) -> String {
    match tokenizer.added_id(text) {
        Some(id) => format!("<[{id}]>"),
        None => literal(text),
    }
}

fn declared(tools: &[Value]) -> Result<Vec<Tool<'_>>> {
    let wrong = |what: String| Error::param("tools", what);
    if tools.is_empty() {
        return Err(wrong("there is none to call".to_string()));
    }
    if tools.len() > MAX_TOOLS {
        return Err(wrong(format!("{} tools, the limit is {MAX_TOOLS}", tools.len())));
    }
    let mut names = BTreeSet::new();
    let mut all = Vec::with_capacity(tools.len());
    for (i, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_name = |c: char| c.is_alphanumeric() || "_-.$".contains(c);
        if name.is_empty() || !name.chars().all(is_name) {
            let what = "has no name of letters, digits, `_`, `-` and `.`";
            return Err(wrong(format!("tool {i} {what}")));
        }
        if !names.insert(name) {
            return Err(wrong(format!("two tools are named `{name}`")));
        }
        let parameters = function.get("parameters").filter(|p| !p.is_null());
        all.push(Tool { name, parameters, is_strict: is_strict(tool) });
    }
    Ok(all)
}

/// The schema of a call as JSON; `any` if its arguments may be any.
fn json_call(tool: &Tool<'_>, any: bool) -> Result<Value> {
    let parameters = tool.parameters.filter(|_| !any).cloned();
    let mut parameters = parameters.unwrap_or_else(|| json!({"type": "object"}));
    keywords::check(&parameters)?;
    let mut schema = Map::new();
    // References count from the top.
    for keyword in ["$defs", "definitions"] {
        if let Some(definitions) = parameters.as_object_mut().and_then(|p| p.remove(keyword)) {
            schema.insert(keyword.into(), definitions);
        }
    }
    schema.insert("type".into(), "object".into());
    let members = json!({"name": {"const": tool.name}, "parameters": parameters});
    schema.insert("properties".into(), members);
    schema.insert("required".into(), json!(["name", "parameters"]));
    schema.insert("additionalProperties".into(), Value::Bool(false));
    schema.insert("x-guidance".into(), json!({"whitespace_pattern": " "}));
    Ok(Value::Object(schema))
}
