//! What servers ask for: embeddings, likelihoods of prompts, thinking within bounds, deadlines, and
//! prompts that begin as others did.

use std::time::Duration;

use lapidary::{
    Error, ErrorCode, Event, FinishReason, Grammar, Message, Request, Sampling, ToolCall,
};
use serde_json::json;

use crate::{engine, load, pebble, story, tools};

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn embeddings_do_not_depend_on_what_else_is_computed() {
    let texts = ["A fox runs through the wood.", "x", "What is the capital of France?"];
    let embed = |text: &str| engine().embed([Request::text(text)]).unwrap().remove(0);
    let alone: Vec<_> = texts.iter().map(|text| embed(text)).collect();
    // Beside an answer, all at once.
    let answer = engine().answer(story()).unwrap();
    let mut all = engine().embed(texts.iter().map(|text| Request::text(*text))).unwrap();
    let want = engine().answer(story()).unwrap().text().unwrap();
    assert_eq!(answer.text().unwrap(), want);
    for (one, alone) in all.iter().zip(&alone) {
        assert_eq!(one.tokens, alone.tokens);
        assert!(one.values.iter().zip(&alone.values).all(|(a, b)| (a - b).abs() < 1e-4));
    }
    all.iter_mut().for_each(lapidary::Embedding::normalise);
    assert!((dot(&all[0].values, &all[0].values) - 1.0).abs() < 1e-5);
    // What is said in other words is nearer than something else.
    let mut other = embed("A fox walks through the wood.");
    other.normalise();
    assert!(dot(&other.values, &all[0].values) > dot(&other.values, &all[2].values));
}

#[test]
fn an_embedding_is_the_mean_of_what_every_token_of_it_is() {
    // The last token's row does not depend on what comes after it, so means of beginnings tell it.
    let ids = engine().model().tokenise("Once upon a time there was a fox").unwrap();
    let sum = |n: usize| -> Vec<f32> {
        let found = engine().embed([Request::ids(ids[..n].to_vec(), vec![])]).unwrap().remove(0);
        assert_eq!(found.tokens, n);
        found.values.iter().map(|x| x * n as f32).collect()
    };
    let (all, but_one) = (sum(ids.len()), sum(ids.len() - 1));
    let last: Vec<f32> = all.iter().zip(&but_one).map(|(a, b)| a - b).collect();
    // Rows are normed, so none is far from another in length, and none is nothing.
    let first = sum(1);
    let (a, b) = (dot(&last, &last).sqrt(), dot(&first, &first).sqrt());
    assert!(a > 0.1 * b && b > 0.1 * a, "{a} {b}");
}

#[test]
fn the_likelihood_of_a_prompt_is_that_of_saying_it() {
    let begin = "Once upon a time";
    let greedy = || Request::text(begin).sampling(Sampling::greedy()).max_tokens(8);
    let said = engine().answer(greedy().logprobs(2)).unwrap().reply().unwrap();
    let n = engine().model().tokenise(begin).unwrap().len();
    let mut ids = engine().model().tokenise(begin).unwrap();
    ids.extend(&said.tokens);
    let asked = Request::ids(ids.clone(), vec![]).prompt_logprobs(2).max_tokens(0);
    for _ in 0..2 {
        let reply = engine().answer(asked.clone()).unwrap().reply().unwrap();
        assert_eq!(reply.prompt_logprobs.len(), ids.len());
        assert!(reply.prompt_logprobs[0].is_none() && reply.text.is_empty());
        let finish = reply.finish.unwrap();
        assert_eq!((finish.reason, finish.stats.new_tokens), (FinishReason::Length, 0));
        for (said, found) in said.logprobs.iter().zip(&reply.prompt_logprobs[n..]) {
            let found = found.as_ref().unwrap();
            assert!((found.logprob - said.logprob).abs() < 1e-3, "{found:?} {said:?}");
            assert_eq!(found.top[0].0, said.top[0].0);
        }
    }
    let e = engine().answer(Request::text("x").max_tokens(0)).unwrap_err();
    assert_eq!(e.code(), ErrorCode::InvalidArgument);
}

#[test]
fn thinking_is_bounded_and_leaves_room() {
    let close = engine().model().prompts().thinking_close().unwrap();
    let asked = |n: usize| story().thinking_budget(n).max_tokens(60).tokens();
    for n in [0, 3] {
        // What the model writes is in its thought until it is told to end it.
        let prompt = {
            let request = asked(n);
            let mut prompt = request.prompt(engine().model()).unwrap();
            let open = engine().model().tokenizer().unwrap().encode_template("<|channel>", None);
            prompt.tokens.extend(open.unwrap());
            prompt
        };
        let request = asked(n).with_prompt(prompt);
        let reply = engine().answer(request).unwrap().reply().unwrap();
        let at = reply.tokens.iter().position(|id| *id == close[0]);
        assert!(at.is_some_and(|at| at <= n.max(1)), "{reply:?}");
        assert!(!reply.text.is_empty(), "{reply:?}");
    }
}

#[test]
fn thinking_and_tools_and_json_are_one_grammar() {
    let schema = json!({"type": "object", "properties": {"animal": {"enum": ["fox", "bear"]}},
        "required": ["animal"], "additionalProperties": false});
    let grammar = Grammar::CallsOr {
        tools: tools(),
        parallel: false,
        otherwise: Box::new(Grammar::JsonSchema(schema)),
    };
    for thinking in [false, true] {
        for question in ["What is the weather in Paris?", "Tell me a story about a brave fox."] {
            let request = Request::chat(vec![Message::user(question)])
                .tools(tools())
                .thinking(thinking)
                .grammar(grammar.clone())
                .temperature(0.0)
                .max_tokens(200);
            let reply = engine().answer(request).unwrap().reply().unwrap();
            match reply.tool_calls.as_slice() {
                [] => {
                    let said: serde_json::Value = serde_json::from_str(&reply.text).unwrap();
                    assert!(["fox", "bear"].contains(&said["animal"].as_str().unwrap()));
                }
                [call] => assert!(call.arguments["city"].is_string(), "{reply:?}"),
                _ => panic!("{reply:?}"),
            }
        }
    }
    // Told of tools, but not allowed to call one.
    let request = Request::chat(vec![Message::user("What is the weather in Paris?")])
        .tools(tools())
        .temperature(0.0)
        .max_tokens(40);
    let called = engine().answer(request.clone()).unwrap().reply().unwrap();
    assert_eq!(called.tool_calls.len(), 1);
    let said = engine().answer(request.grammar(Grammar::Text)).unwrap().reply().unwrap();
    assert!(said.tool_calls.is_empty() && !said.text.is_empty(), "{said:?}");
}

/// A weak model goes on and on; what it began is closed while there is room.
#[test]
fn json_and_calls_are_whole_however_short_the_answer_is() {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"},
        "legs": {"type": "integer"}, "likes": {"type": "array", "items": {"type": "string"}}},
        "required": ["name", "legs", "likes"], "additionalProperties": false});
    let forms = [
        Grammar::JsonSchema(schema),
        Grammar::JsonObject,
        Grammar::ToolCalls { tools: tools(), required: true, parallel: true },
    ];
    for (seed, form) in (0..18).zip(forms.iter().cycle()) {
        let request = Request::chat(vec![Message::user("Name an animal and say all about it.")])
            .grammar(form.clone())
            .thinking(seed % 2 == 0)
            .seed(seed)
            .max_tokens(120);
        let reply = engine().answer(request).unwrap().reply().unwrap();
        match form {
            Grammar::ToolCalls { .. } => assert!(!reply.tool_calls.is_empty(), "{reply:?}"),
            _ => {
                let said: serde_json::Value =
                    serde_json::from_str(&reply.text).unwrap_or_else(|e| panic!("{e}: {reply:?}"));
                assert!(said.is_object());
            }
        }
    }
}

#[test]
fn a_deadline_ends_what_waits_and_what_is_said() {
    let now = story().max_tokens(400).deadline(Duration::ZERO);
    let reply = engine().answer(now).unwrap().reply().unwrap();
    assert_eq!(reply.finish.unwrap().reason, FinishReason::Deadline);
    assert!(reply.text.is_empty());
    let later = story().deadline(Duration::from_secs(3600));
    let reply = engine().answer(later).unwrap().reply().unwrap();
    assert_ne!(reply.finish.unwrap().reason, FinishReason::Deadline);
}

#[test]
fn tokens_are_counted_as_they_are_run() {
    let request = Request::chat(vec![
        Message::system("Be brief."),
        Message::user("What is this?").media(lapidary::Media::image(crate::drawing())),
    ]);
    let n = engine().model().count_tokens(&request).unwrap();
    let reply = engine().answer(request.max_tokens(1)).unwrap().reply().unwrap();
    assert_eq!(reply.finish.unwrap().stats.prompt_tokens, n);
}

#[test]
fn a_history_that_makes_no_sense_names_the_message() {
    let call = ToolCall { id: "a".into(), name: "get_time".into(), ..ToolCall::default() };
    let calls = Message { tool_calls: vec![call.clone()], ..Message::new("assistant") };
    let user = || Message::user("What time is it in Rome?");
    let ask = |messages: Vec<Message>| engine().answer(Request::chat(messages).max_tokens(4));
    let named = |messages: Vec<Message>| match ask(messages) {
        Err(Error::Message { index, .. }) => index,
        other => panic!("{other:?}"),
    };
    assert_eq!(named(vec![user(), Message::tool(&call, "{}")]), 1);
    assert_eq!(named(vec![user(), calls.clone(), user()]), 1);
    assert!(ask(vec![user(), calls, Message::tool(&call, "{\"time\": \"9:00\"}")]).is_ok());
    assert_eq!(ask(vec![]).unwrap_err().code(), ErrorCode::InvalidArgument);
}

/// What was run of a prompt is found by the next that begins with it, whoever asks, unless they are
/// of different scopes.
#[test]
fn a_second_turn_and_a_second_user_run_only_what_is_new() {
    let engine = pebble().load(load().sequences(2).context(1024)).unwrap();
    let system = "You are a helpful assistant who answers in one short sentence. ".repeat(8);
    let ask = |messages: Vec<Message>, scope: u64| {
        let request = Request::chat(messages).temperature(0.0).max_tokens(12).scope(scope);
        let reply = engine.answer(request).unwrap().reply().unwrap();
        let stats = reply.finish.clone().unwrap().stats;
        (reply.text, stats.prompt_tokens, stats.reused_tokens)
    };
    let first = || vec![Message::system(system.as_str()), Message::user("What is 2 + 2?")];
    let (said, n, reused) = ask(first(), 0);
    assert!(n > 60 && reused == 0, "{n} {reused}");
    // The next turn of the same conversation.
    let mut next = first();
    next.extend([Message::assistant(said), Message::user("And 3 + 3?")]);
    let (_, more, reused) = ask(next, 0);
    assert!(reused >= n - 1 && reused < more, "{reused} of {more} after {n}");
    // Another user with the same instructions.
    let other = vec![Message::system(system.as_str()), Message::user("Who wrote Hamlet?")];
    let (_, _, reused) = ask(other, 0);
    assert!(reused > n - 20, "{reused} of {n}");
    // The same again, with nothing to share.
    assert_eq!(ask(first(), 1).2, 0);
    assert!(ask(first(), 0).2 >= n - 1);
}

#[test]
fn what_is_told_of_a_prompt_comes_before_the_answer() {
    let request = Request::text("Once upon a time").prompt_logprobs(0).max_tokens(3).scope(9);
    let events: Vec<Event> = engine().answer(request).unwrap().map(Result::unwrap).collect();
    assert!(matches!(events.first(), Some(Event::PromptLogprobs { first: 0, .. })), "{events:?}");
    assert!(matches!(events.last(), Some(Event::Finished(_))));
}
