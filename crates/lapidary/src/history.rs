//! Whether a history of messages makes sense: templates leave out, without a word, what does not.

use crate::error::{Error, Result};
use crate::event::ToolCall;
use crate::message::Message;

/// Checks that every tool's result answers a call, and that every call has one. What is wrong is an
/// [`Error::Message`], which names the message by its number.
pub fn check_history(messages: &[Message]) -> Result<()> {
    let wrong = |index: usize, what: String| Err(Error::Message { index, what });
    if messages.is_empty() {
        return Err(Error::argument("there are no messages; give at least one"));
    }
    // Calls that wait for their results, and the message that has them.
    let mut open: Option<(usize, Vec<&ToolCall>)> = None;
    let mut seen = false;
    for (i, message) in messages.iter().enumerate() {
        if is_result(message) {
            let Some((_, calls)) = &mut open else {
                let what = "a tool's result stands after a message that calls a tool, or after \
                            another result";
                return wrong(i, what.into());
            };
            match answered(calls, message) {
                Some(call) => _ = calls.remove(call),
                None => return wrong(i, no_call(message)),
            }
            seen = true;
            continue;
        }
        if let Some(unanswered) = open.take().and_then(|(at, calls)| missing(at, &calls, seen)) {
            return Err(unanswered);
        }
        seen = false;
        if message.tool_calls.is_empty() {
            continue;
        }
        if message.role != "assistant" {
            return wrong(i, format!("`{}` can't call tools, only `assistant` can", message.role));
        }
        if let Some(n) = message.tool_calls.iter().position(|call| call.name.is_empty()) {
            return wrong(i, format!("tool call {n} has no name"));
        }
        open = Some((i, message.tool_calls.iter().collect()));
    }
    match open.and_then(|(at, calls)| missing(at, &calls, seen)) {
        Some(unanswered) => Err(unanswered),
        None => Ok(()),
    }
}

fn is_result(message: &Message) -> bool {
    message.role == "tool" || message.role == "function"
}

/// Which of the calls a result answers.
fn answered(calls: &[&ToolCall], result: &Message) -> Option<usize> {
    let by_id = |id: &String| calls.iter().position(|call| call.id == *id);
    let by_name = |name: &String| calls.iter().position(|call| call.name == *name);
    match (&result.tool_call_id, &result.name) {
        (Some(id), _) if calls.iter().any(|call| !call.id.is_empty()) => by_id(id),
        (_, Some(name)) => by_name(name),
        _ => (!calls.is_empty()).then_some(0),
    }
}

fn no_call(result: &Message) -> String {
    match (&result.tool_call_id, &result.name) {
        (Some(id), _) => format!("no call that waits for a result has the id `{id}`"),
        (None, Some(name)) => format!("no call that waits for a result is one of `{name}`"),
        (None, None) => "there are more results than calls".to_string(),
    }
}

/// Calls without an id may share a result.
fn missing(at: usize, calls: &[&ToolCall], seen: bool) -> Option<Error> {
    let call = calls.iter().find(|call| !call.id.is_empty() || !seen)?;
    let what = format!(
        "the call of `{}` has no result; add a message of the role `tool` after it",
        call.name
    );
    Some(Error::Message { index: at, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(ids: &[&str]) -> Message {
        let call =
            |id: &&str| ToolCall { id: id.to_string(), name: "f".into(), ..Default::default() };
        Message { tool_calls: ids.iter().map(call).collect(), ..Message::new("assistant") }
    }

    fn result(id: Option<&str>, name: Option<&str>) -> Message {
        Message {
            tool_call_id: id.map(str::to_string),
            name: name.map(str::to_string),
            ..Message::new("tool").text("1")
        }
    }

    fn refused(messages: &[Message]) -> (usize, String) {
        match check_history(messages) {
            Err(Error::Message { index, what }) => (index, what),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_history_that_makes_sense_is_taken() {
        let user = || Message::user("x");
        check_history(&[user()]).unwrap();
        check_history(&[Message::system("s"), user(), Message::assistant("y"), user()]).unwrap();
        let (a, b) = (|| result(Some("a"), None), || result(Some("b"), None));
        check_history(&[user(), calls(&["a", "b"]), b(), a()]).unwrap();
        check_history(&[user(), calls(&["a"]), a(), calls(&["a"]), a(), user()]).unwrap();
        // Some APIs have no ids.
        check_history(&[user(), calls(&[""]), result(None, Some("f"))]).unwrap();
        check_history(&[user(), calls(&["", ""]), result(None, None), user()]).unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let user = || Message::user("x");
        let a = || result(Some("a"), None);
        assert!(matches!(check_history(&[]), Err(Error::Argument(_))));
        assert_eq!(refused(&[user(), a()]).0, 1);
        let (at, what) = refused(&[user(), calls(&["a"]), result(Some("z"), None)]);
        assert!(at == 2 && what.contains("`z`"), "{what}");
        let (at, what) = refused(&[user(), calls(&["a"]), user()]);
        assert!(at == 1 && what.contains("`f` has no result"), "{what}");
        assert_eq!(refused(&[user(), calls(&["a", "b"]), a()]).0, 1);
        assert_eq!(refused(&[user(), calls(&["a"]), a(), a()]).0, 3);
        assert_eq!(refused(&[user(), calls(&["a"])]).0, 1);
        assert_eq!(refused(&[user(), calls(&[""]), result(None, Some("g"))]).0, 2);
        let wrong = Message { role: "user".into(), ..calls(&["a"]) };
        assert_eq!(refused(&[wrong, a()]).0, 0);
        let unnamed = Message { tool_calls: vec![ToolCall::default()], ..calls(&[]) };
        assert_eq!(refused(&[unnamed]).0, 0);
    }
}
