//! Tools, and which of them is called.

use serde_json::{Value, json};

use crate::service::{Failure, Result, ToolChoice};

/// The tools of a request that are functions, as the library wants them, and what is to be said of the
/// others. `is_flat` reads the Responses API's form, which has no `function` inside.
pub(super) fn functions(given: &[Value], is_flat: bool) -> Result<(Vec<Value>, Vec<String>)> {
    let (mut tools, mut warnings) = (Vec::new(), Vec::new());
    for (i, tool) in given.iter().enumerate() {
        let inside = if is_flat { "" } else { ".function" };
        let at = |what: &str| format!("tools[{i}]{what}");
        let within = |what: &str| format!("tools[{i}]{inside}{what}");
        let Some(kind) = tool.get("type").and_then(Value::as_str) else {
            return Err(Failure::param(at(".type"), "a tool has a type: `function`"));
        };
        if kind != "function" {
            let kind: String = kind.chars().take(60).collect();
            warnings.push(format!(
                "tools[{i}] of the type `{kind}` was left out: only functions are called"
            ));
            continue;
        }
        let function = if is_flat { Some(tool) } else { tool.get("function") };
        let Some(function) = function.and_then(Value::as_object) else {
            return Err(Failure::param(at(".function"), "a function is an object with a name"));
        };
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            return Err(Failure::param(within(".name"), "a function has a name"));
        };
        let description = match function.get("description") {
            None | Some(Value::Null) => Value::from(""),
            Some(text @ Value::String(_)) => text.clone(),
            Some(_) => {
                return Err(Failure::param(within(".description"), "this is a string"));
            }
        };
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(_) => {
                return Err(Failure::param(within(".parameters"), "this is a JSON schema"));
            }
        };
        let mut declared =
            json!({"name": name, "description": description, "parameters": parameters});
        // A tool that must be called exactly as it is declared is refused if that can't be.
        if function.get("strict") == Some(&Value::Bool(true)) {
            declared["strict"] = true.into();
        }
        tools.push(json!({"type": "function", "function": declared}));
    }
    Ok((tools, warnings))
}

/// Which tool is called; leaves those that may be.
pub(super) fn choice(given: Option<&Value>, tools: &mut Vec<Value>) -> Result<ToolChoice> {
    let wrong = || {
        let what = "this is `auto`, `none`, `required`, or a function by its name";
        Failure::param("tool_choice", what)
    };
    let word = |word: &str| match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Err(wrong()),
    };
    let given = match given {
        None | Some(Value::Null) => return Ok(ToolChoice::Auto),
        Some(Value::String(given)) => return word(given),
        Some(given) => given,
    };
    match given.get("type").and_then(Value::as_str) {
        Some("function") => {
            let nested = given.pointer("/function/name").or_else(|| given.get("name"));
            let name = nested.and_then(Value::as_str).ok_or_else(wrong)?;
            Ok(ToolChoice::Function(name.to_string()))
        }
        Some("allowed_tools") => {
            let inside = given.get("allowed_tools").unwrap_or(given);
            let named = inside.get("tools").and_then(Value::as_array).ok_or_else(wrong)?;
            let name = |t: &Value| {
                t.pointer("/function/name")
                    .or_else(|| t.get("name"))
                    .and_then(|n| n.as_str().map(String::from))
            };
            let names: Vec<String> = named.iter().filter_map(name).collect();
            tools.retain(|tool| name(tool).is_some_and(|n| names.contains(&n)));
            word(inside.get("mode").and_then(Value::as_str).ok_or_else(wrong)?)
        }
        _ => Err(wrong()),
    }
}
