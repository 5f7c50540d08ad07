//! Messages of OpenAI's form. What is wrong is told with its place.

use lapidary::{Message, Modality, Part, ToolCall};
use serde_json::{Map, Value};

use crate::service::{Chat, Failure, Input, Result, media, without_billing};

/// A conversation, of which tools were read already.
pub fn chat(given: &[Value], tools: &[Value]) -> Result<Input> {
    let messages = given.iter().enumerate().map(|(i, m)| message(m, &format!("messages[{i}]")));
    let messages = messages.collect::<Result<Vec<_>>>()?;
    // While they still have the numbers that they were given.
    if !messages.is_empty() {
        lapidary::check_history(&messages)?;
    }
    let messages = together(messages);
    let chat = Chat { messages, tools: tools.to_vec(), parallel_calls: true, ..Chat::default() };
    Ok(Input::Chat(Box::new(chat)))
}

/// Instructions that stand first become one message: templates know one. What is not for the model is
/// left out of them.
pub(crate) fn together(mut messages: Vec<Message>) -> Vec<Message> {
    let n = messages.iter().take_while(|m| m.role == "system").count();
    let mut rest = messages.split_off(n);
    let mut first: Vec<Message> = messages.into_iter().filter_map(for_the_model).collect();
    if first.len() > 1 {
        let texts: Vec<String> = first.iter().map(Message::plain_text).collect();
        first = vec![Message::system(texts.join("\n\n"))];
    }
    first.append(&mut rest);
    first
}

/// Instructions without what is for somebody's accounting; `None` if there is nothing else.
fn for_the_model(mut message: Message) -> Option<Message> {
    let n = message.parts.len();
    message.parts.retain_mut(|part| {
        let Part::Text(text) = part else { return true };
        let kept = without_billing(text);
        if kept.len() < text.len() {
            *text = kept.to_string();
            return !text.is_empty();
        }
        true
    });
    (message.parts.len() == n || !message.parts.is_empty()).then_some(message)
}

fn message(given: &Value, at: &str) -> Result<Message> {
    let Some(fields) = given.as_object() else {
        return Err(Failure::param(at, "a message is an object with a `role`"));
    };
    let role = match fields.get("role").and_then(Value::as_str) {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        Some("function") => {
            let what = "the role `function` is not supported; use `tool` with a `tool_call_id`";
            return Err(Failure::param(format!("{at}.role"), what));
        }
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            let what =
                format!("`{other}` is no role; there are system, developer, user, assistant, tool");
            return Err(Failure::param(format!("{at}.role"), what));
        }
        None => return Err(Failure::param(format!("{at}.role"), "a message has a role")),
    };
    let mut message = Message::new(role);
    message.name = text_field(fields, "name", at)?.filter(|_| role == "tool");
    match role {
        "assistant" => {
            let thought = text_field(fields, "reasoning_content", at)?;
            message.thinking = thought.or(text_field(fields, "reasoning", at).unwrap_or(None));
            message.tool_calls = calls(fields.get("tool_calls"), at)?;
            if fields.get("function_call").is_some_and(|call| !call.is_null()) {
                let what = "`function_call` is not supported; use `tool_calls`";
                return Err(Failure::param(format!("{at}.function_call"), what));
            }
        }
        "tool" => {
            let id = text_field(fields, "tool_call_id", at)?.filter(|id| !id.is_empty());
            let Some(id) = id else {
                let what = "a tool's result names the call that it answers";
                return Err(Failure::param(format!("{at}.tool_call_id"), what));
            };
            message.tool_call_id = Some(id);
        }
        _ => {}
    }
    let at = format!("{at}.content");
    message.parts = match fields.get("content") {
        Some(Value::String(text)) => vec![Part::Text(text.clone())],
        Some(Value::Array(parts)) => {
            let one = |(i, p): (usize, &Value)| part(p, role, &format!("{at}[{i}]"));
            let parts = parts.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
            match parts.is_empty() && role == "user" {
                true => return Err(Failure::param(at, "there is nothing in this message")),
                false => parts,
            }
        }
        None | Some(Value::Null) if role == "assistant" => match refusal(fields) {
            Some(text) => vec![Part::Text(text)],
            None if message.tool_calls.is_empty() && message.thinking.is_none() => {
                let what = "a message of the assistant says something or calls a tool";
                return Err(Failure::param(at, what));
            }
            None => vec![],
        },
        None | Some(Value::Null) => {
            return Err(Failure::param(at, format!("a message of the role `{role}` has content")));
        }
        Some(_) => return Err(Failure::param(at, "this is a string, or a list of parts")),
    };
    Ok(message)
}

fn refusal(fields: &Map<String, Value>) -> Option<String> {
    fields.get("refusal").and_then(Value::as_str).map(String::from)
}

fn text_field(fields: &Map<String, Value>, name: &str, at: &str) -> Result<Option<String>> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Failure::param(format!("{at}.{name}"), "this is a string")),
    }
}

fn calls(given: Option<&Value>, at: &str) -> Result<Vec<ToolCall>> {
    let at = format!("{at}.tool_calls");
    let given = match given {
        None | Some(Value::Null) => return Ok(vec![]),
        Some(Value::Array(given)) => given,
        Some(_) => return Err(Failure::param(at, "this is a list of calls")),
    };
    let one = |(index, call): (usize, &Value)| {
        let at = format!("{at}[{index}]");
        let kind = call.get("type").and_then(Value::as_str).unwrap_or("function");
        if kind != "function" {
            return Err(Failure::param(format!("{at}.type"), "only functions are called"));
        }
        let name = call.pointer("/function/name").and_then(Value::as_str);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(Failure::param(format!("{at}.function.name"), "a call names its function"));
        };
        let id = call.get("id").and_then(Value::as_str).unwrap_or_default().to_string();
        let arguments = call.pointer("/function/arguments");
        let arguments = object(arguments, &format!("{at}.function.arguments"))?;
        Ok(ToolCall { index, id, name: name.to_string(), arguments })
    };
    given.iter().enumerate().map(one).collect()
}

/// Arguments of a call: an object, or its JSON text.
pub(super) fn object(given: Option<&Value>, at: &str) -> Result<Map<String, Value>> {
    let wrong = || Failure::param(at, "arguments are a JSON object, as text");
    match given {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| wrong()),
        Some(_) => Err(wrong()),
    }
}

/// One part of a message.
pub(super) fn part(given: &Value, role: &str, at: &str) -> Result<Part> {
    let kind = given.get("type").and_then(Value::as_str);
    let Some(kind) = kind else {
        return Err(Failure::param(
            format!("{at}.type"),
            "a part has a type: `text`, `image_url` …",
        ));
    };
    let text = |name: &str| {
        let text = given.get(name).and_then(Value::as_str);
        let wrong = || Failure::param(format!("{at}.{name}"), "this is a string");
        text.map(|text| Part::Text(text.to_string())).ok_or_else(wrong)
    };
    match kind {
        "text" | "input_text" | "output_text" => return text("text"),
        "refusal" if role == "assistant" => return text("refusal"),
        _ => {}
    }
    let modality = match kind {
        "image_url" | "input_image" => Modality::Image,
        "input_audio" | "audio_url" => Modality::Audio,
        "video_url" | "input_video" => Modality::Video,
        "file" | "input_file" => {
            let what = "files are not read; send their text, or pages as images";
            return Err(Failure::unsupported(format!("{at}.type"), what));
        }
        other => {
            let other: String = other.chars().take(40).collect();
            let what = format!(
                "`{other}` is no part of a message; there are text, image_url, input_audio, video_url"
            );
            return Err(Failure::param(format!("{at}.type"), what));
        }
    };
    if !matches!(role, "user" | "tool") {
        let what = format!("a message of the role `{role}` has text alone");
        return Err(Failure::param(format!("{at}.type"), what));
    }
    Ok(Part::Media(shown(given, kind, modality, at)?))
}

fn shown(given: &Value, kind: &str, modality: Modality, at: &str) -> Result<lapidary::Media> {
    let inside = given.get(kind);
    if kind == "input_audio" {
        let at = format!("{at}.input_audio.data");
        let data = inside.and_then(|i| i.get("data")).or_else(|| given.get("data"));
        let Some(data) = data.and_then(Value::as_str) else {
            return Err(Failure::param(at, "this is audio in base64"));
        };
        return match data.get(..5).is_some_and(|head| head.eq_ignore_ascii_case("data:")) {
            true => media::of_uri(data, modality, &at),
            false => media::of_base64(data, modality, &at),
        };
    }
    if given.get("file_id").is_some_and(|id| !id.is_null()) {
        let what = "files are not kept; send the bytes as `data:…;base64,…`";
        return Err(Failure::unsupported(format!("{at}.file_id"), what));
    }
    // The Responses API has the address itself where others have an object with it.
    let flat = given.get("image_url").filter(|_| kind == "input_image");
    let found = inside.or(flat);
    let uri = found.and_then(|i| i.get("url").unwrap_or(i).as_str());
    let name = if kind == "input_image" { "image_url" } else { kind };
    let at = format!("{at}.{name}");
    match uri {
        Some(uri) => media::of_uri(uri, modality, &at),
        None => Err(Failure::param(at, "this is an object with a `url`")),
    }
}
