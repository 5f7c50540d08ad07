//! Tools in plain text, for models whose template knows none: declarations stand in the system
//! message, calls and what came of them in ordinary turns.

use lapidary_program::{CallFormat, ToolsInText};
use serde_json::{Map, Value};

use super::{Content, Message, Part, ToolCall};

/// A conversation in which tools are text.
pub(crate) fn as_text(
    messages: &[Message],
    tools: &[Value],
    format: &CallFormat,
    told: &ToolsInText,
) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let is_system = |m: &Message| m.role == "system" || m.role == "developer";
    if !tools.is_empty() {
        let mut text = told.instruction.clone();
        for tool in tools {
            text += &tool.get("function").unwrap_or(tool).to_string();
            text.push('\n');
        }
        let mut system = match messages.first().filter(|m| is_system(m)) {
            Some(first) => first.clone(),
            None => Message { role: "system".to_string(), ..Message::default() },
        };
        append(&mut system, text.trim_end());
        all.push(system);
    }
    let rest = match all.is_empty() {
        true => messages,
        false => {
            messages.get(usize::from(messages.first().is_some_and(is_system))..).unwrap_or(&[])
        }
    };
    // Whether the last turn is what tools returned.
    let mut returned = false;
    for message in rest {
        match message.role.as_str() {
            "tool" => {
                let text = format!("{}{}{}", told.open, text_of(message), told.close);
                match all.last_mut().filter(|_| returned) {
                    Some(turn) => append(turn, &text),
                    None => all.push(Message::new("user", text)),
                }
                returned = true;
            }
            // Turns alternate: what the user says goes along with what tools returned.
            "user" if returned => {
                if let Some(turn) = all.last_mut() {
                    join(turn, message);
                }
                returned = false;
            }
            _ => {
                let mut turn = message.clone();
                if let Some(calls) = turn.tool_calls.take() {
                    let calls: Vec<String> = calls.iter().map(call_text).collect();
                    append(
                        &mut turn,
                        &format!("{}{}{}", format.open, calls.join("\n"), format.close),
                    );
                }
                all.push(turn);
                returned = false;
            }
        }
    }
    all
}

/// A call as JSON.
fn call_text(call: &ToolCall) -> String {
    let arguments = match &call.function.arguments {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into()),
        Value::Null => Value::Object(Map::new()),
        other => other.clone(),
    };
    let name = Value::String(call.function.name.clone());
    format!("{{\"name\": {name}, \"parameters\": {arguments}}}")
}

fn text_of(message: &Message) -> String {
    match &message.content {
        None => String::new(),
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Parts(parts)) => {
            let texts = parts.iter().filter_map(|part| match part {
                Part::Text { text } => Some(text.as_str()),
                _ => None,
            });
            texts.collect()
        }
    }
}

/// Adds text to a message, apart from what it says already.
fn append(message: &mut Message, text: &str) {
    match &mut message.content {
        Some(Content::Text(said)) if !said.is_empty() => {
            said.push_str("\n\n");
            said.push_str(text);
        }
        Some(Content::Parts(parts)) => parts.push(Part::Text { text: format!("\n\n{text}") }),
        nothing => *nothing = Some(Content::Text(text.to_string())),
    }
}

/// Adds what another message says.
fn join(message: &mut Message, other: &Message) {
    match &other.content {
        None => {}
        Some(Content::Text(text)) => append(message, text),
        Some(Content::Parts(parts)) => {
            let said = text_of(message);
            let first = Part::Text { text: format!("{said}\n\n") };
            let all = std::iter::once(first).chain(parts.iter().cloned()).collect();
            message.content = Some(Content::Parts(all));
        }
    }
}

#[cfg(test)]
mod tests {
    use lapidary_program::CallSyntax;
    use serde_json::json;

    use super::*;
    use crate::answer::Answer;

    fn format() -> CallFormat {
        CallFormat {
            open: "```call\n".into(),
            close: "\n```".into(),
            syntax: CallSyntax::Code,
            told: Some(ToolsInText {
                instruction: "Tools:\n".into(),
                open: "```result\n".into(),
                close: "\n```".into(),
            }),
        }
    }

    fn rewritten(messages: Value, tools: Value) -> Value {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        let tools: Vec<Value> = serde_json::from_value(tools).unwrap();
        let format = format();
        serde_json::to_value(as_text(&messages, &tools, &format, format.told.as_ref().unwrap()))
            .unwrap()
    }

    #[test]
    fn declarations_go_to_the_system_message() {
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        let said = json!([{"role": "user", "content": "Hi"}]);
        let want = json!([{"role": "system", "content": "Tools:\n{\"name\":\"f\"}"},
            {"role": "user", "content": "Hi"}]);
        assert_eq!(rewritten(said, tool.clone()), want);
        let said = json!([{"role": "system", "content": "Be kind."}]);
        let want = json!([{"role": "system", "content": "Be kind.\n\nTools:\n{\"name\":\"f\"}"}]);
        assert_eq!(rewritten(said, tool), want);
        let said = json!([{"role": "system", "content": "Be kind."}]);
        assert_eq!(rewritten(said.clone(), json!([])), said);
    }

    #[test]
    fn calls_and_results_are_turns_that_alternate() {
        let call = |name: &str| json!({"type": "function", "function": {"name": name, "arguments": "{\"a\":1}"}});
        let said = json!([
            {"role": "user", "content": "Go"},
            {"role": "assistant", "tool_calls": [call("f"), call("g")]},
            {"role": "tool", "content": "one"},
            {"role": "tool", "content": [{"type": "text", "text": "two"}]},
            {"role": "user", "content": "And?"},
        ]);
        let calls = "```call\n{\"name\": \"f\", \"parameters\": {\"a\":1}}\n\
                     {\"name\": \"g\", \"parameters\": {\"a\":1}}\n```";
        let want = json!([
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": "```result\none\n```\n\n```result\ntwo\n```\n\nAnd?"},
        ]);
        assert_eq!(rewritten(said, json!([])), want);
        // What is written is what is read.
        let format = lapidary_program::AnswerFormat { thinking: None, calls: Some(format()) };
        let names: Vec<String> =
            Answer::read(calls, &format).calls.into_iter().map(|c| c.name).collect();
        assert_eq!(names, ["f", "g"]);
    }
}
