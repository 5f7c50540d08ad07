//! Answers that are cut, requests of which one part is wrong, and ends that come early.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use lapidary_server::service::KeepAlive;
use lapidary_server::{Config, Outcome, Source};
use serde_json::{Value, json};

use crate::client::{exchange, post, request};
use crate::{CHAT, config, load, pebble, shared, source, start, until, weather, with};

fn paris() -> Value {
    json!({"role": "user", "content": "What is the weather in Paris?"})
}

/// Lengths of answers of which at least one ends inside of a call.
const SHORT: std::ops::Range<usize> = 1..12;

#[test]
fn a_call_that_is_cut_is_told_once() {
    let mut n_cut = 0;
    for max_tokens in SHORT {
        let body = json!({"messages": [paris()], "tools": [weather()], "temperature": 0,
            "max_tokens": max_tokens});
        let whole = post(shared(), CHAT, &body).json()["choices"][0].clone();
        let events = post(shared(), CHAT, &with(body, json!({"stream": true}))).events();
        let (mut said, mut arguments, mut reason) = (String::new(), String::new(), Value::Null);
        for event in &events {
            let choice = &event["choices"][0];
            said += choice["delta"]["content"].as_str().unwrap_or_default();
            let call = &choice["delta"]["tool_calls"][0]["function"]["arguments"];
            arguments += call.as_str().unwrap_or_default();
            if !choice["finish_reason"].is_null() {
                reason = choice["finish_reason"].clone();
            }
        }
        assert_eq!(reason, whole["finish_reason"]);
        assert_eq!(said, whole["message"]["content"].as_str().unwrap_or_default());
        let called = &whole["message"]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(arguments, called.as_str().unwrap_or_default(), "{whole}");
        if reason == "length" && called.is_string() {
            n_cut += 1;
            assert_eq!(said, "", "{whole}");
        }
    }
    assert!(n_cut > 0);
}

#[test]
fn a_response_whose_call_is_cut_is_incomplete() {
    let mut tool = weather()["function"].clone();
    tool["type"] = "function".into();
    let mut n_cut = 0;
    for n in SHORT {
        let body = json!({"input": [paris()], "tools": [tool], "temperature": 0,
            "max_output_tokens": n});
        let whole = post(shared(), "/v1/responses", &body).json();
        let events = post(shared(), "/v1/responses", &with(body, json!({"stream": true}))).events();
        let last = &events[events.len() - 1]["response"];
        assert_eq!(last["status"], whole["status"], "{last}");
        let items = |response: &Value| -> Vec<(Value, Value, Value)> {
            let one = |i: &Value| (i["type"].clone(), i["status"].clone(), i["arguments"].clone());
            response["output"].as_array().unwrap().iter().map(one).collect()
        };
        assert_eq!(items(last), items(&whole));
        let done = events.iter().filter(|e| e["type"] == "response.output_item.done");
        let done: Vec<Value> = done.map(|e| e["item"].clone()).collect();
        assert_eq!(items(&json!({"output": done})), items(last));
        let cut = |i: &&(Value, Value, Value)| i.0 == "function_call" && i.1 == "incomplete";
        if items(last).iter().find(cut).is_some() {
            n_cut += 1;
            assert_eq!(last["status"], "incomplete");
            assert_eq!(items(last).len(), 1, "{last}");
            // What was cut is no call that waits for a result.
            let next = json!({"input": "And now?", "previous_response_id": last["id"],
                "max_output_tokens": 1});
            let next = post(shared(), "/v1/responses", &next);
            assert_eq!(next.status, 200, "{}", next.text());
        }
    }
    assert!(n_cut > 0);
}

#[test]
fn usage_of_several_answers_counts_each_prompt_once() {
    let mut ends = Vec::new();
    for seed in 0..8 {
        let body = json!({"prompt": ["Once upon a", "The fox"], "n": 4, "temperature": 1.5,
            "seed": seed, "max_tokens": 12, "stop": ["e"]});
        let whole = post(shared(), "/v1/completions", &body).json()["usage"].clone();
        let streams = json!({"stream": true, "stream_options": {"include_usage": true}});
        let events = post(shared(), "/v1/completions", &with(body, streams)).events();
        let is_end = |e: &&Value| e["choices"][0]["finish_reason"].is_string();
        ends.extend(events.iter().find(is_end).map(|e| e["choices"][0]["index"].clone()));
        let usage = &events[events.len() - 1]["usage"];
        for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
            assert_eq!(usage[field], whole[field], "{field} of {usage}");
        }
        let n = |text: &str| {
            post(shared(), "/tokenize", &json!({"prompt": text})).json()["count"].as_u64().unwrap()
        };
        assert_eq!(usage["prompt_tokens"], n("Once upon a") + n("The fox"));
    }
    assert!(ends.iter().any(|index| *index != 0), "{ends:?}");
}

fn prompt_tokens(body: &Value) -> u64 {
    let reply = post(shared(), "/v1/responses/input_tokens", body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()["input_tokens"].as_u64().unwrap()
}

#[test]
fn instructions_and_a_developers_words_are_both_kept() {
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let both = json!({"instructions": "You are a fox.",
        "input": [say("developer", "Be brief."), say("system", "Be kind."), say("user", "Hi")]});
    let one = json!({"input":
        [say("system", "You are a fox.\n\nBe brief.\n\nBe kind."), say("user", "Hi")]});
    assert_eq!(prompt_tokens(&both), prompt_tokens(&one));
    // The developer's words stay, the instructions don't.
    let body = with(both, json!({"temperature": 0, "max_output_tokens": 3}));
    let first = post(shared(), "/v1/responses", &body).json();
    let said = first["output"][0]["content"][0]["text"].as_str().unwrap();
    let next = json!({"input": "And now?", "previous_response_id": first["id"]});
    let all = json!({"input": [say("system", "Be brief.\n\nBe kind."), say("user", "Hi"),
        say("assistant", said), say("user", "And now?")]});
    assert_eq!(prompt_tokens(&next), prompt_tokens(&all));
}

#[test]
fn what_is_wrong_with_items_is_named_by_the_item() {
    let call = json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"});
    let result =
        |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "sunny"});
    let other = json!({"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"});
    let file = json!({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]});
    let cases = [
        (json!([paris(), result("a")]), "input[1]"),
        (json!([paris(), call, other, result("b")]), "input[1]"),
        (json!([paris(), call, result("a"), result("a")]), "input[3]"),
        (json!([paris(), call, result("c")]), "input[2]"),
        (json!([paris(), call, result("a"), file]), "input[3].content[0].type"),
        (json!([]), "input"),
        (json!(vec![paris(); 1025]), "input"),
    ];
    for (input, param) in cases {
        let reply = post(shared(), "/v1/responses", &json!({"input": input}));
        assert_eq!((reply.status, reply.error("param")), (400, param.into()), "{}", reply.text());
    }
    let tools = json!([{"type": "function", "name": "a b"}]);
    let reply = post(shared(), "/v1/responses", &json!({"input": "Hi", "tools": tools}));
    assert_eq!(reply.error("param"), "tools[0].name");
}

#[test]
fn a_list_with_a_bad_prompt_begins_nothing() {
    let server = start(&config(), vec![source("pebble")]);
    let engine = server.engine("pebble");
    let long = "fox ".repeat(2000);
    let bad = [json!(["Once", "The", long]), json!([[2, 3], [3, 4], [99_999_999]])];
    for prompts in bad {
        for (path, field) in [("/v1/completions", "prompt"), ("/v1/embeddings", "input")] {
            let mut many = prompts.as_array().unwrap().clone();
            let more = vec![many[0].clone(); if field == "input" { 40 } else { 0 }];
            many.splice(0..0, more);
            let reply = post(server.at, path, &json!({field: many}));
            assert_eq!(reply.status, 400, "{}", reply.text());
        }
    }
    let input = json!({"model": "pebble", "input": ["a", "b", long], "truncate": false});
    assert_eq!(post(server.at, "/api/embed", &input).status, 400);
    let did = engine.metrics();
    assert_eq!((did.open, did.finished, did.cancelled, did.failed), (0, 0, 0, 0));
}

/// A model whose loading takes until the sender is dropped.
fn slow(name: &str) -> (Source, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (release, held) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let held = std::sync::Mutex::new(held);
    let make = move || {
        let _ = begun.send(());
        let _ = held.lock().unwrap().recv();
        pebble().load(load())
    };
    (Source { make: Box::new(make), load: None, ..source(name) }, release, begins)
}

#[test]
fn c7_a_model_that_is_being_loaded_keeps_no_server_alive() {
    let (model, release, begins) = slow("slow");
    let mut config = Config { lazy: true, ..config() };
    config.limits.drain_seconds = 1;
    let mut server = start(&config, vec![model]);
    let at = server.at;
    let asking = std::thread::spawn(move || post(at, CHAT, &crate::story(3)));
    begins.recv().unwrap();
    server.stop();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(server.ended()));
    // The clock only says when to give up.
    let outcome = ended.recv_timeout(Duration::from_secs(30)).expect("it ends");
    assert_eq!(outcome, Outcome::CutOff);
    let reply = asking.join().unwrap();
    assert_eq!((reply.status, reply.error("code")), (503, "shutting_down".into()));
    drop(release);
}

#[test]
fn what_is_swept_does_not_wait_for_what_is_loaded() {
    let (model, release, begins) = slow("slow");
    let keep = Some(KeepAlive::For(Duration::ZERO));
    let config = Config { lazy: true, keep_alive: keep, ..config() };
    let server = start(&config, vec![source("quick"), model]);
    let at = server.at;
    let ask = move |name: &str| post(at, CHAT, &with(crate::story(2), json!({"model": name})));
    assert_eq!(ask("quick").status, 200);
    let asking = std::thread::spawn(move || ask("slow").status);
    begins.recv().unwrap();
    let (swept, is_swept) = mpsc::channel();
    let app = server.app.clone();
    std::thread::spawn(move || {
        app.find(Some("quick")).unwrap().keep_alive(KeepAlive::For(Duration::ZERO));
        app.registry().sweep();
        let _ = swept.send(Instant::now());
    });
    assert!(is_swept.recv_timeout(Duration::from_secs(30)).is_ok());
    drop(release);
    assert_eq!(asking.join().unwrap(), 200);
    until("it is unloaded", || server.app.find(Some("quick")).unwrap().engine().is_none());
}

#[test]
fn a_wrong_method_is_told_the_right_ones() {
    let reply = exchange(shared(), &request("DELETE", CHAT, &[], b""));
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    let reply = exchange(shared(), &request("POST", "/health", &[], b""));
    assert_eq!(reply.status, 405);
    assert!(reply.header("allow").unwrap().contains("GET"));
}
