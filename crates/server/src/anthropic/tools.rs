//! Tools, and which of them is called.

use serde_json::{Value, json};

use super::{shown, wrong};
use crate::service::{Result, ToolChoice};

/// The tools that a client runs, as the library wants them. Those that Anthropic's servers would run
/// are left out, and that is said.
pub(super) fn declared(given: &[Value], warnings: &mut Vec<String>) -> Result<Vec<Value>> {
    let mut all = Vec::with_capacity(given.len());
    for (i, tool) in given.iter().enumerate() {
        let at = |what: &str| format!("tools.{i}{what}");
        if !tool.is_object() {
            return Err(wrong(&at(""), "a tool is an object with a name"));
        }
        match tool.get("type") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if kind == "custom" => {}
            Some(Value::String(kind)) => {
                let kind = shown(kind);
                let what = "only tools with an `input_schema` are called";
                warnings.push(format!("tools.{i} of the type `{kind}` was left out: {what}"));
                continue;
            }
            Some(_) => return Err(wrong(&at(".type"), "this is a string")),
        }
        let Some(name) = tool.get("name").and_then(Value::as_str) else {
            return Err(wrong(&at(".name"), "a tool has a name"));
        };
        let description = match tool.get("description") {
            None | Some(Value::Null) => "",
            Some(Value::String(text)) => text,
            Some(_) => return Err(wrong(&at(".description"), "this is a string")),
        };
        let parameters = match tool.get("input_schema") {
            Some(schema @ Value::Object(_)) => schema.clone(),
            _ => return Err(wrong(&at(".input_schema"), "this is a JSON schema, an object")),
        };
        let mut function =
            json!({"name": name, "description": description, "parameters": parameters});
        if tool.get("strict") == Some(&Value::Bool(true)) {
            function["strict"] = true.into();
        }
        all.push(json!({"type": "function", "function": function}));
    }
    Ok(all)
}

/// Which tool is called, and whether several may be at once.
pub(super) fn choice(given: Option<&Value>) -> Result<(ToolChoice, bool)> {
    let Some(given) = given.filter(|given| !given.is_null()) else {
        return Ok((ToolChoice::Auto, true));
    };
    let choice = match given.get("type").and_then(Value::as_str) {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("any") => ToolChoice::Required,
        Some("tool") => match given.get("name").and_then(Value::as_str) {
            Some(name) => ToolChoice::Function(name.to_string()),
            None => return Err(wrong("tool_choice.name", "this is the name of a tool")),
        },
        _ => return Err(wrong("tool_choice.type", "there are `auto`, `any`, `tool` and `none`")),
    };
    let parallel = match given.get("disable_parallel_tool_use") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(off)) => !off,
        Some(_) => {
            return Err(wrong("tool_choice.disable_parallel_tool_use", "this is true or false"));
        }
    };
    Ok((choice, parallel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_of_other_types_are_left_out_and_named() {
        let mut warnings = Vec::new();
        let given = [
            json!({"type": "web_search_20260101", "name": "web_search", "max_uses": 5}),
            json!({"name": "f", "input_schema": {"type": "object"}, "cache_control": {}}),
            json!({"type": "custom", "name": "g", "strict": true, "input_schema": {}}),
        ];
        let tools = declared(&given, &mut warnings).unwrap();
        assert_eq!(tools.len(), 2);
        assert_eq!(tools[1]["function"]["strict"], true);
        assert!(warnings.len() == 1 && warnings[0].contains("tools.0"), "{warnings:?}");
        for wrong in [json!(1), json!({"name": "f"}), json!({"input_schema": {}})] {
            assert!(declared(&[wrong], &mut warnings).is_err());
        }
    }

    #[test]
    fn choices() {
        let read = |value: Value| choice(Some(&value)).map_err(|e| e.param.unwrap());
        assert_eq!(choice(None), Ok((ToolChoice::Auto, true)));
        let one = json!({"type": "any", "disable_parallel_tool_use": true});
        assert_eq!(read(one), Ok((ToolChoice::Required, false)));
        let named = json!({"type": "tool", "name": "f"});
        assert_eq!(read(named), Ok((ToolChoice::Function("f".into()), true)));
        assert_eq!(read(json!({"type": "tool"})), Err("tool_choice.name".into()));
        assert_eq!(read(json!("auto")), Err("tool_choice.type".into()));
    }
}
