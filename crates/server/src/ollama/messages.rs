//! Messages of Ollama's form, and tools.

use lapidary::{Message, Modality, Part, ToolCall, check_history};
use serde_json::{Map, Value, json};

use super::{shown, wrong};
use crate::service::{Failure, Result, media};

/// A conversation.
pub(super) fn conversation(given: &[Value]) -> Result<Vec<Message>> {
    let all = given.iter().enumerate().map(|(i, m)| message(m, &format!("messages[{i}]")));
    let all: Vec<Message> = all.collect::<Result<_>>()?;
    check_history(&all).map_err(|e| match e {
        lapidary::Error::Message { index, what } => wrong(&format!("messages[{index}]"), what),
        e => e.into(),
    })?;
    Ok(crate::openai::messages::together(all))
}

fn message(given: &Value, at: &str) -> Result<Message> {
    let Some(fields) = given.as_object() else {
        return Err(wrong(at, "a message is an object with a `role`"));
    };
    let role = match fields.get("role").and_then(Value::as_str) {
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        Some(other) => {
            let what =
                format!("`{}` is no role; there are system, user, assistant, tool", shown(other));
            return Err(wrong(&format!("{at}.role"), what));
        }
        None => return Err(wrong(&format!("{at}.role"), "a message has a role")),
    };
    let mut message = Message::new(role);
    let text = text(fields, "content", at)?.unwrap_or_default();
    message.parts = images(fields.get("images"), &format!("{at}.images"))?;
    let shows = !message.parts.is_empty();
    if shows && role != "user" {
        return Err(wrong(
            &format!("{at}.images"),
            format!("a message of the role `{role}` has none"),
        ));
    }
    if role == "assistant" {
        message.thinking = self::text(fields, "thinking", at)?.filter(|t| !t.is_empty());
        message.tool_calls = calls(fields.get("tool_calls"), &format!("{at}.tool_calls"))?;
    }
    if role == "tool" {
        let name = self::text(fields, "tool_name", at)?.or(self::text(fields, "name", at)?);
        message.name = name.filter(|name| !name.is_empty());
        message.tool_call_id = self::text(fields, "tool_call_id", at)?.filter(|id| !id.is_empty());
    }
    // Media come first, as models are taught.
    if !text.is_empty() || (!shows && message.tool_calls.is_empty()) {
        message.parts.push(Part::Text(text));
    }
    Ok(message)
}

fn text(fields: &Map<String, Value>, name: &str, at: &str) -> Result<Option<String>> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(wrong(&format!("{at}.{name}"), "this is a string")),
    }
}

/// Images in base64.
pub(super) fn images(given: Option<&Value>, at: &str) -> Result<Vec<Part>> {
    let all = match given {
        None | Some(Value::Null) => return Ok(vec![]),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(wrong(at, "this is a list of images in base64")),
    };
    let one = |(i, image): (usize, &Value)| {
        let at = format!("{at}[{i}]");
        let data = image.as_str().ok_or_else(|| wrong(&at, "this is an image in base64"))?;
        let told = |e: Failure| Failure { message: format!("{at}: {}", e.message), ..e };
        let is_uri = data.get(..5).is_some_and(|head| head.eq_ignore_ascii_case("data:"));
        let shown = match is_uri {
            true => media::of_uri(data, Modality::Image, &at),
            false => media::of_base64(data, Modality::Image, &at),
        };
        shown.map(Part::Media).map_err(told)
    };
    all.iter().enumerate().map(one).collect()
}

fn calls(given: Option<&Value>, at: &str) -> Result<Vec<ToolCall>> {
    let all = match given {
        None | Some(Value::Null) => return Ok(vec![]),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(wrong(at, "this is a list of calls")),
    };
    let one = |(index, call): (usize, &Value)| {
        let at = format!("{at}[{index}].function");
        let function = call.get("function").unwrap_or(&Value::Null);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        if name.is_empty() {
            return Err(wrong(&format!("{at}.name"), "a call names its function"));
        }
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(arguments)) => arguments.clone(),
            // Clients of OpenAI's API write JSON text.
            Some(Value::String(text)) => serde_json::from_str(text)
                .map_err(|_| wrong(&format!("{at}.arguments"), "arguments are an object"))?,
            Some(_) => return Err(wrong(&format!("{at}.arguments"), "arguments are an object")),
        };
        let id = call.get("id").and_then(Value::as_str).unwrap_or_default().to_string();
        Ok(ToolCall { index, id, name: name.to_string(), arguments })
    };
    all.iter().enumerate().map(one).collect()
}

/// Tools, as the library wants them.
pub(super) fn tools(given: &[Value], warnings: &mut Vec<String>) -> Result<Vec<Value>> {
    let mut all = Vec::with_capacity(given.len());
    for (i, tool) in given.iter().enumerate() {
        let at = |what: &str| format!("tools[{i}]{what}");
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        if kind != "function" {
            let kind = shown(kind);
            warnings.push(format!(
                "{} of the type `{kind}` was left out: only functions are called",
                at("")
            ));
            continue;
        }
        let function = tool.get("function").unwrap_or(&Value::Null);
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            return Err(wrong(&at(".function.name"), "a function has a name"));
        };
        let description = function.get("description").and_then(Value::as_str).unwrap_or_default();
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => json!({"type": "object", "properties": {}}),
            Some(schema @ Value::Object(_)) => without_nulls(schema),
            Some(_) => return Err(wrong(&at(".function.parameters"), "this is a JSON schema")),
        };
        all.push(json!({"type": "function", "function": {
            "name": name, "description": description, "parameters": parameters,
        }}));
    }
    Ok(all)
}

/// Ollama's own clients write null for what a schema does not say.
fn without_nulls(schema: &Value) -> Value {
    match schema {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, value)| {
                !value.is_null() || matches!(name.as_str(), "const" | "default")
            });
            kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        Value::Array(all) => {
            // A null of `enum` is a value.
            let inner =
                |one: &Value| if one.is_object() { without_nulls(one) } else { one.clone() };
            all.iter().map(inner).collect()
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let user = json!({"role": "user", "content": "x"});
        let call = json!({"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": {"a": 1}}}]});
        let cases = [
            (json!([1]), "messages[0]"),
            (json!([{"role": "king", "content": ""}]), "messages[0].role"),
            (json!([{"content": ""}]), "messages[0].role"),
            (json!([{"role": "user", "content": ["x"]}]), "messages[0].content"),
            (json!([{"role": "user", "images": ["@"]}]), "messages[0].images[0]"),
            (json!([{"role": "user", "images": ["http://a/b.png"]}]), "messages[0].images[0]"),
            (json!([user, {"role": "tool", "content": "1"}]), "messages[1]"),
            (
                json!([user, call, {"role": "tool", "content": "1", "tool_name": "g"}]),
                "messages[2]",
            ),
            (json!([user, call, user]), "messages[1]"),
        ];
        for (messages, param) in cases {
            let failure = conversation(messages.as_array().unwrap()).unwrap_err();
            assert_eq!(failure.param.as_deref(), Some(param), "{messages}");
        }
        let fine = json!([user, call, {"role": "tool", "content": "1", "tool_name": "f"}]);
        assert_eq!(conversation(fine.as_array().unwrap()).unwrap().len(), 3);
    }

    #[test]
    fn schemas_have_no_nulls() {
        let given = json!([{"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "$defs": null, "items": null,
            "properties": {
                "a": {"type": "string", "enum": null, "description": "x"},
                "b": {"anyOf": [{"type": "null", "items": null}, {"enum": [null, 1]}]}}}}}]);
        let tools = tools(given.as_array().unwrap(), &mut Vec::new()).unwrap();
        let want = json!({"type": "object",
            "properties": {"a": {"type": "string", "description": "x"},
                "b": {"anyOf": [{"type": "null"}, {"enum": [null, 1]}]}}});
        assert_eq!(tools[0]["function"]["parameters"], want);
    }
}
