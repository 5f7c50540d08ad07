//! Messages of Anthropic's form. What is wrong is told with its place.
//!
//! Results of tools stand inside of user messages there, and several messages of one side may follow
//! each other; templates know neither. So results become messages of their own, and what follows each
//! other becomes one message.

use std::collections::HashMap;

use lapidary::{Message, Modality, Part, ToolCall, check_history};
use serde_json::{Map, Value};

use super::{shown, wrong};
use crate::service::{Failure, Result, media, without_billing};

/// A conversation in the making.
#[derive(Default)]
struct Conversation {
    system: Vec<String>,
    /// Each with the number of the message that it came from.
    all: Vec<(usize, Message)>,
    /// Names of tools by the ids of their calls.
    called: HashMap<String, String>,
}

/// The messages of a conversation, instructions first.
pub(super) fn conversation(
    system: Option<&Value>,
    given: &[Value],
    warnings: &mut Vec<String>,
) -> Result<Vec<Message>> {
    let system = instructions(system, "system")?;
    let mut conversation = Conversation { system, ..Conversation::default() };
    for (i, message) in given.iter().enumerate() {
        conversation.take(i, message, warnings)?;
    }
    conversation.finish()
}

/// Texts of instructions, without those that are for Anthropic's accounting.
fn instructions(given: Option<&Value>, at: &str) -> Result<Vec<String>> {
    let texts = match given {
        None | Some(Value::Null) => vec![],
        Some(Value::String(text)) => vec![text.as_str()],
        Some(Value::Array(blocks)) => {
            let text = |(i, block): (usize, &'_ Value)| match block {
                Value::String(_) => Err(wrong(&format!("{at}.{i}"), "a block is an object")),
                block if block.get("type").and_then(Value::as_str) != Some("text") => {
                    Err(wrong(&format!("{at}.{i}.type"), "instructions are blocks of `text`"))
                }
                _ => Ok(()),
            };
            blocks.iter().enumerate().try_for_each(text)?;
            let mut all = Vec::with_capacity(blocks.len());
            for (i, block) in blocks.iter().enumerate() {
                all.push(string(block, "text", &format!("{at}.{i}"))?);
            }
            all
        }
        Some(_) => return Err(wrong(at, "this is a string, or a list of blocks")),
    };
    let texts = texts.into_iter().map(without_billing).filter(|text| !text.trim().is_empty());
    Ok(texts.map(String::from).collect())
}

impl Conversation {
    fn take(&mut self, i: usize, given: &Value, warnings: &mut Vec<String>) -> Result<()> {
        let at = format!("messages.{i}");
        let Some(fields) = given.as_object() else {
            return Err(wrong(&at, "a message is an object with a `role`"));
        };
        match fields.get("role").and_then(Value::as_str) {
            Some("user") => self.user(i, fields, warnings),
            Some("assistant") => self.assistant(i, fields, warnings),
            // Agents put instructions between messages, too.
            Some("system" | "developer") => {
                let texts = instructions(fields.get("content"), &format!("{at}.content"))?;
                if self.all.is_empty() {
                    self.system.extend(texts);
                } else if !texts.is_empty() {
                    let text = format!("<system>\n{}\n</system>", texts.join("\n\n"));
                    self.said(i, vec![Part::Text(text)]);
                }
                Ok(())
            }
            Some(role) => {
                let what = format!("`{}` is no role; there are user and assistant", shown(role));
                Err(wrong(&format!("{at}.role"), what))
            }
            None => Err(wrong(&format!("{at}.role"), "a message has a role")),
        }
    }

    fn user(
        &mut self,
        i: usize,
        fields: &Map<String, Value>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let at = format!("messages.{i}.content");
        let mut parts = Vec::new();
        for (at, block) in blocks(fields.get("content"), &at)? {
            let block = match block {
                Block::Text(text) => {
                    parts.push(said(text, &at)?);
                    continue;
                }
                Block::Object(block, kind) => (block, kind),
            };
            match block {
                (block, "tool_result") => {
                    let (result, shown) = self.result(block, &at)?;
                    self.all.push((i, result));
                    parts.extend(shown);
                }
                (block, kind) => parts.extend(part(block, kind, &at, warnings)?),
            }
        }
        let is_result = |(from, m): &(usize, Message)| *from == i && m.role == "tool";
        match parts.is_empty() {
            true if self.all.last().is_some_and(is_result) => {}
            true => return Err(wrong(&at, "there is nothing in this message")),
            false => self.said(i, parts),
        }
        Ok(())
    }

    /// What a tool returned: a message, and what it shows, which stands in the user's words.
    fn result(&self, block: &Value, at: &str) -> Result<(Message, Vec<Part>)> {
        let id = string(block, "tool_use_id", at)?;
        let mut text = String::new();
        let mut shown = Vec::new();
        let at = format!("{at}.content");
        if block.get("content").is_some_and(|content| !content.is_null()) {
            for (at, block) in blocks(block.get("content"), &at)? {
                let parts = match block {
                    Block::Text(text) => vec![Part::Text(text.to_string())],
                    Block::Object(block, kind) => part(block, kind, &at, &mut Vec::new())?,
                };
                for part in parts {
                    match part {
                        Part::Text(more) if text.is_empty() => text = more,
                        Part::Text(more) => text = format!("{text}\n{more}"),
                        media => shown.push(media),
                    }
                }
            }
        }
        if block.get("is_error") == Some(&Value::Bool(true)) {
            text = format!("Error: {text}");
        }
        let message = Message {
            tool_call_id: Some(id.to_string()),
            name: self.called.get(id).cloned(),
            ..Message::new("tool").text(text)
        };
        Ok((message, shown))
    }

    fn assistant(
        &mut self,
        i: usize,
        fields: &Map<String, Value>,
        warnings: &mut Vec<String>,
    ) -> Result<()> {
        let at = format!("messages.{i}.content");
        let mut message = Message::new("assistant");
        let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
        for (at, block) in blocks(fields.get("content"), &at)? {
            match block {
                Block::Text(text) => texts.push(text),
                Block::Object(block, "text") => texts.push(string(block, "text", &at)?),
                Block::Object(block, "thinking") => {
                    thoughts.push(string(block, "thinking", &at)?);
                }
                Block::Object(_, "redacted_thinking") => {}
                Block::Object(block, "tool_use") => {
                    let call = call(block, message.tool_calls.len(), &at)?;
                    self.called.insert(call.id.clone(), call.name.clone());
                    message.tool_calls.push(call);
                }
                Block::Object(_, kind) if kind == "image" || kind == "tool_result" => {
                    let what = format!("`{kind}` stands in messages of the user alone");
                    return Err(wrong(&format!("{at}.type"), what));
                }
                // What Anthropic's servers did is no part of what was said.
                Block::Object(_, kind) => {
                    warnings.push(format!("{at} of the type `{}` was left out", shown(kind)));
                }
            }
        }
        let text = texts.into_iter().filter(|t| !t.trim().is_empty()).collect::<Vec<_>>();
        if !text.is_empty() {
            message = message.text(text.join("\n"));
        }
        message.thinking = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
        // One that says nothing is as good as none.
        if message.parts.is_empty() && message.tool_calls.is_empty() {
            return Ok(());
        }
        match self.all.last_mut().filter(|(_, last)| last.role == "assistant") {
            Some((_, last)) => {
                join(&mut last.parts, message.parts);
                last.tool_calls.extend(message.tool_calls);
                last.thinking = last.thinking.take().or(message.thinking);
            }
            None => self.all.push((i, message)),
        }
        Ok(())
    }

    /// Adds to what the user says.
    fn said(&mut self, i: usize, parts: Vec<Part>) {
        match self.all.last_mut().filter(|(_, last)| last.role == "user") {
            Some((_, last)) => join(&mut last.parts, parts),
            None => {
                let mut message = Message::new("user");
                join(&mut message.parts, parts);
                self.all.push((i, message));
            }
        }
    }

    fn finish(self) -> Result<Vec<Message>> {
        let (from, messages): (Vec<usize>, Vec<Message>) = self.all.into_iter().unzip();
        let Some(last) = messages.last() else {
            return Err(wrong("messages", "there must be at least one message of the user"));
        };
        check_history(&messages).map_err(|e| match e {
            lapidary::Error::Message { index, what } => {
                let i = from.get(index).copied().unwrap_or(index);
                wrong(&format!("messages.{i}"), what)
            }
            e => e.into(),
        })?;
        if last.role == "assistant" {
            let what = "the conversation ends with the assistant's words; it must end with a message \
                        of the user";
            return Err(wrong("messages", what));
        }
        let system = self.system.join("\n\n");
        let system = (!system.is_empty()).then(|| Message::system(system));
        Ok(system.into_iter().chain(messages).collect())
    }
}

/// Adds parts after others. Templates put nothing between two texts, so they become one.
fn join(all: &mut Vec<Part>, more: Vec<Part>) {
    for part in more {
        match (all.last_mut(), part) {
            (Some(Part::Text(text)), Part::Text(more)) => {
                text.push('\n');
                text.push_str(&more);
            }
            (_, part) => all.push(part),
        }
    }
}

enum Block<'a> {
    /// Content that is a string.
    Text(&'a str),
    /// A block and its type.
    Object(&'a Value, &'a str),
}

/// The blocks of a content, each with its place.
fn blocks<'a>(given: Option<&'a Value>, at: &str) -> Result<Vec<(String, Block<'a>)>> {
    match given {
        Some(Value::String(text)) => Ok(vec![(at.to_string(), Block::Text(text))]),
        Some(Value::Array(blocks)) => {
            let one = |(i, block): (usize, &'a Value)| {
                let at = format!("{at}.{i}");
                match block.get("type").and_then(Value::as_str) {
                    Some(kind) => Ok((at, Block::Object(block, kind))),
                    None => {
                        Err(wrong(&format!("{at}.type"), "a block has a type: `text`, `image` …"))
                    }
                }
            };
            blocks.iter().enumerate().map(one).collect()
        }
        _ => Err(wrong(at, "this is a string, or a list of blocks")),
    }
}

fn string<'a>(block: &'a Value, name: &str, at: &str) -> Result<&'a str> {
    let text = block.get(name).and_then(Value::as_str);
    text.ok_or_else(|| wrong(&format!("{at}.{name}"), "this is a string"))
}

fn said(text: &str, at: &str) -> Result<Part> {
    match text.is_empty() {
        true => Err(wrong(at, "a text is not empty")),
        false => Ok(Part::Text(text.to_string())),
    }
}

/// What a block of a user message says or shows.
fn part(block: &Value, kind: &str, at: &str, warnings: &mut Vec<String>) -> Result<Vec<Part>> {
    match kind {
        "text" => Ok(vec![said(string(block, "text", at)?, &format!("{at}.text"))?]),
        "image" => {
            let shown = source(block, Modality::Image, &format!("{at}.source"))?;
            Ok(vec![Part::Media(shown)])
        }
        "document" => document(block, at),
        "search_result" => {
            let mut text = format!("{}\n", string(block, "title", at)?);
            for (at, block) in blocks(block.get("content"), &format!("{at}.content"))? {
                match block {
                    Block::Text(more) => text.push_str(more),
                    Block::Object(block, _) => text.push_str(string(block, "text", &at)?),
                }
            }
            Ok(vec![Part::Text(text)])
        }
        // Names of tools that were looked up by Anthropic's servers.
        "tool_reference" | "container_upload" => {
            warnings.push(format!("{at} of the type `{kind}` was left out"));
            Ok(vec![])
        }
        _ => {
            let what = format!(
                "`{}` is no block; there are text, image, document, tool_result",
                shown(kind)
            );
            Err(wrong(&format!("{at}.type"), what))
        }
    }
}

fn document(block: &Value, at: &str) -> Result<Vec<Part>> {
    let at = format!("{at}.source");
    let source = block.get("source").unwrap_or(&Value::Null);
    let title = block.get("title").and_then(Value::as_str);
    let mut parts: Vec<Part> = title.map(|t| Part::Text(t.to_string())).into_iter().collect();
    match source.get("type").and_then(Value::as_str) {
        Some("text") => parts.push(said(string(source, "data", &at)?, &format!("{at}.data"))?),
        Some("content") => {
            for (at, inner) in blocks(source.get("content"), &format!("{at}.content"))? {
                match inner {
                    Block::Text(text) => parts.push(said(text, &at)?),
                    Block::Object(inner, kind @ ("text" | "image")) => {
                        parts.extend(part(inner, kind, &at, &mut Vec::new())?);
                    }
                    Block::Object(..) => {
                        return Err(wrong(&format!("{at}.type"), "there are `text` and `image`"));
                    }
                }
            }
        }
        _ => {
            let what = "files are not read; send their text, or pages as images";
            return Err(Failure::unsupported(&at, format!("{at}: {what}")));
        }
    }
    Ok(parts)
}

/// What a source shows. Nothing is fetched.
fn source(block: &Value, kind: Modality, at: &str) -> Result<lapidary::Media> {
    let source = block.get("source").unwrap_or(&Value::Null);
    let told = |e: Failure| {
        let place = e.param.as_deref().unwrap_or(at);
        Failure { message: format!("{place}: {}", e.message), ..e }
    };
    match source.get("type").and_then(Value::as_str) {
        Some("base64") => {
            let mime = source.get("media_type").and_then(Value::as_str).unwrap_or("image/png");
            if mime.split('/').next() != Some(kind.name()) {
                let what = format!("`{}` is not an image", shown(mime));
                return Err(wrong(&format!("{at}.media_type"), what));
            }
            let data = string(source, "data", at)?;
            media::of_base64(data, kind, &format!("{at}.data")).map_err(told)
        }
        Some("url") => {
            let uri = string(source, "url", at)?;
            media::of_uri(uri, kind, &format!("{at}.url")).map_err(told)
        }
        Some("file") => {
            let what = "files are not kept; send the bytes as `base64`";
            Err(Failure::unsupported(at, format!("{at}: {what}")))
        }
        _ => Err(wrong(&format!("{at}.type"), "there is `base64`")),
    }
}

fn call(block: &Value, index: usize, at: &str) -> Result<ToolCall> {
    let id = string(block, "id", at)?;
    let name = string(block, "name", at)?;
    let arguments = match block.get("input") {
        Some(Value::Object(input)) => input.clone(),
        None | Some(Value::Null) => Map::new(),
        Some(_) => return Err(wrong(&format!("{at}.input"), "this is an object")),
    };
    if id.is_empty() || name.is_empty() {
        return Err(wrong(at, "a call has an `id` and a `name`"));
    }
    Ok(ToolCall { index, id: id.to_string(), name: name.to_string(), arguments })
}

#[cfg(test)]
mod tests;
