//! Conversations.

use lapidary::{Error, ErrorCode, Event, FinishReason, Media, Message, Part, Sampling};

use crate::{drawing, engine, tools};

fn conversation() -> lapidary::Conversation {
    let mut chat = engine().conversation();
    chat.sampling(Sampling::greedy()).max_tokens(64);
    chat
}

#[test]
fn it_talks_and_remembers() {
    let mut chat = conversation();
    let first = chat.user("What can you do?").answer().unwrap().reply().unwrap();
    assert!(first.text.contains("stories"), "{first:?}");
    let finish = first.finish.unwrap();
    assert_eq!(finish.reason, FinishReason::Stop);
    let n_first = finish.stats.prompt_tokens;
    let second = chat.user("What is 2 + 2?").answer().unwrap().reply().unwrap();
    let stats = second.finish.unwrap().stats;
    assert!(stats.prompt_tokens > n_first + 10, "the first turn is part of the second prompt");
    let roles: Vec<String> = chat.messages().into_iter().map(|m| m.role).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(chat.messages()[1].plain_text(), first.text);
    chat.clear();
    assert!(chat.messages().is_empty());
}

#[test]
fn it_sees_bytes_and_decoded_images() {
    let mut chat = conversation();
    let said = chat.user("Describe this image.").image(drawing()).answer().unwrap();
    let said = said.text().unwrap();
    assert!(said.contains("yellow") && said.contains("star"), "{said}");
    // The media stand in the message, before its text.
    let [shown, _] = &chat.messages()[..] else { panic!("two messages") };
    assert!(matches!(&shown.parts[..], [Part::Media(_), Part::Text(_)]));
    let image = lapidary::Image::decode(&drawing(), &Default::default()).unwrap();
    let mut again = conversation();
    again.user("Describe this image.").show(Media::decoded_image(image));
    assert_eq!(again.answer().unwrap().text().unwrap(), said);
}

#[test]
fn it_calls_tools_and_hears_what_they_return() {
    let mut chat = conversation();
    chat.tools(tools()).user("What is the weather in Auckland?");
    let events: Vec<Event> = chat.answer().unwrap().map(Result::unwrap).collect();
    let begun = |e: &Event| matches!(e, Event::ToolCallBegin { name, .. } if name == "get_weather");
    assert!(events.iter().any(begun), "{events:?}");
    let call = events.iter().find_map(|e| match e {
        Event::ToolCall(call) => Some(call.clone()),
        _ => None,
    });
    let call = call.expect("there is a call");
    assert_eq!(
        serde_json::Value::from(call.arguments.clone()),
        serde_json::json!({"city": "Auckland"})
    );
    // Arguments that came in pieces are those of the call.
    let json: String = events
        .iter()
        .filter_map(|e| match e {
            Event::ToolCallArguments { json, .. } => Some(json.as_str()),
            _ => None,
        })
        .collect();
    let pieces: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(pieces, serde_json::Value::from(call.arguments.clone()));
    chat.tool_result(&call, r#"{"temperature": 17, "sky": "clear"}"#);
    let reply = chat.answer().unwrap().reply().unwrap();
    assert!(!reply.text.is_empty(), "{reply:?}");
    let roles: Vec<String> = chat.messages().into_iter().map(|m| m.role).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert_eq!(chat.messages()[2].tool_call_id.as_deref(), Some(call.id.as_str()));
}

#[test]
fn regenerating_and_forking_go_on_from_where_they_should() {
    let mut chat = conversation();
    let first = chat.user("What can you do?").answer().unwrap().text().unwrap();
    assert_eq!(chat.regenerate().unwrap().text().unwrap(), first);
    assert_eq!(chat.messages().len(), 2);
    let mut fork = chat.fork();
    let forked = fork.user("What is 2 + 2?").answer().unwrap().text().unwrap();
    assert_eq!((chat.messages().len(), fork.messages().len()), (2, 4));
    assert_eq!(chat.user("What is 2 + 2?").answer().unwrap().text().unwrap(), forked);
}

#[test]
fn what_was_stopped_before_a_word_is_taken_back_and_what_was_said_stays() {
    let mut chat = conversation();
    drop(chat.user("Tell me a story.").answer().unwrap());
    assert!(chat.messages().is_empty());
    let mut answer = chat.user("Tell me a story about a fox.").answer().unwrap();
    // One at a time.
    let e = chat.user("And?").answer().unwrap_err();
    assert!(matches!(e, Error::Answering) && e.code() == ErrorCode::Busy);
    chat.discard();
    let words = answer.find_map(|e| match e.unwrap() {
        Event::Text(text) => Some(text),
        _ => None,
    });
    let words = words.expect("it says something");
    // A fork does not know of what is not said yet.
    assert!(chat.fork().messages().is_empty());
    drop(answer);
    let [_, said] = &chat.messages()[..] else { panic!("two messages") };
    assert_eq!(said.plain_text(), words);
}

#[test]
fn nothing_said_is_not_answered_and_wrong_media_are_refused() {
    let mut chat = conversation();
    assert_eq!(chat.answer().unwrap_err().code(), ErrorCode::InvalidArgument);
    chat.user("What is this?").image(b"not an image".to_vec());
    let e = chat.answer().unwrap_err();
    assert_eq!(e.code(), ErrorCode::InvalidArgument);
    chat.discard().user("What is this?").audio(vec![0; 10]);
    let e = chat.answer().unwrap_err();
    assert!(e.to_string().contains("takes text"), "{e}");
    assert!(chat.messages().is_empty());
}

#[test]
fn messages_are_written_in_the_words_of_the_api() {
    let message = Message::user("Look.").media(Media::image(drawing()));
    let json = message.to_json();
    assert_eq!(json["role"], "user");
    assert_eq!(json["content"][1]["type"], "image");
}

#[test]
fn a_conversation_has_a_last_word_on_its_requests_and_can_be_replaced() {
    let mut chat = conversation();
    chat.refine(|request| request.logprobs(1).max_tokens(3));
    let reply = chat.user("What can you do?").answer().unwrap().reply().unwrap();
    assert_eq!(reply.finish.unwrap().stats.new_tokens, 3);
    assert_eq!(reply.logprobs.len(), 3);
    let n_tokens = chat.count_tokens().unwrap();
    assert!(n_tokens > 3, "{n_tokens}");
    chat.replace(vec![Message::system("Be brief."), Message::user("What is 2 + 2?")]).unwrap();
    assert_eq!(chat.instructions(), Some("Be brief."));
    assert_eq!(chat.messages().len(), 1);
    assert_ne!(chat.count_tokens().unwrap(), n_tokens);
    // What stands open is answered.
    chat.answer().unwrap().reply().unwrap();
    assert_eq!(chat.messages().len(), 2);
}
