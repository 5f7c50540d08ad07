//! Rows R1 to R6 and R14: what requests may be.

use std::io::Write;

use serde_json::{Value, json};

use crate::client::{connect, exchange, get, post, read, request};
use crate::{CHAT, config, load, said, shared, source, start, story, streamed, until, with};

fn refused(body: &Value, param: Option<&str>) {
    let reply = post(shared(), CHAT, body);
    assert_eq!(reply.status, 400, "{body}: {}", reply.text());
    assert_eq!(reply.error("type"), "invalid_request_error");
    assert_eq!(reply.error("param").as_str(), param, "{body}: {}", reply.text());
    assert!(reply.error("message").as_str().is_some_and(|m| !m.is_empty()));
}

#[test]
fn r01_what_is_no_request_is_refused_with_its_place() {
    let at = shared();
    for body in ["", "{", "[]", "null", "1", "{\"messages\": }", "{} {}", "\u{feff}{}"] {
        let reply = exchange(at, &request("POST", CHAT, &[], body.as_bytes()));
        assert_eq!(reply.status, 400, "{body:?}: {}", reply.text());
        assert_eq!(reply.error("type"), "invalid_request_error");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(exchange(at, &request("POST", CHAT, &[], deep.as_bytes())).status, 400);
    refused(&json!({}), None);
    refused(&json!({"messages": []}), Some("messages"));
    refused(&json!({"messages": "hi"}), Some("messages"));
    refused(&json!({"messages": [1]}), Some("messages[0]"));
    let one = |message: Value| json!({"messages": [{"role": "user", "content": "x"}, message]});
    refused(&one(json!({"content": "x"})), Some("messages[1].role"));
    refused(&one(json!({"role": "king", "content": "x"})), Some("messages[1].role"));
    refused(&one(json!({"role": 1, "content": "x"})), Some("messages[1].role"));
    refused(&one(json!({"role": "user", "content": null})), Some("messages[1].content"));
    refused(&one(json!({"role": "user"})), Some("messages[1].content"));
    refused(&one(json!({"role": "user", "content": 5})), Some("messages[1].content"));
    refused(&one(json!({"role": "user", "content": []})), Some("messages[1].content"));
    refused(&one(json!({"role": "assistant"})), Some("messages[1].content"));
    let part = |part: Value| one(json!({"role": "user", "content": [part]}));
    refused(&part(json!({"text": "x"})), Some("messages[1].content[0].type"));
    refused(&part(json!({"type": "poem"})), Some("messages[1].content[0].type"));
    refused(&part(json!({"type": "text"})), Some("messages[1].content[0].text"));
    let many: Vec<Value> = (0..1025).map(|_| json!({"role": "user", "content": "x"})).collect();
    refused(&json!({"messages": many}), Some("messages"));
}

#[test]
fn r01_a_malformed_history_is_refused_by_the_message() {
    let call = json!({"role": "assistant", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "1"});
    let user = json!({"role": "user", "content": "x"});
    let all = |messages: Vec<Value>| json!({"messages": messages, "max_tokens": 1});
    let fine = post(shared(), CHAT, &all(vec![user.clone(), call.clone(), result("a")]));
    assert_eq!(fine.status, 200, "{}", fine.text());
    let wrong = [
        (vec![user.clone(), result("a")], "message 1"),
        (vec![user.clone(), call.clone(), result("b")], "message 2"),
        (vec![user.clone(), call.clone(), user.clone()], "message 1"),
        (vec![user.clone(), call.clone(), result("a"), result("a")], "message 3"),
    ];
    for (messages, named) in wrong {
        let reply = post(shared(), CHAT, &all(messages));
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert!(reply.error("message").as_str().unwrap().contains(named), "{}", reply.text());
    }
    let mut bad = call.clone();
    bad["tool_calls"][0]["function"]["arguments"] = "{\"x".into();
    let place = "messages[1].tool_calls[0].function.arguments";
    refused(&all(vec![user.clone(), bad, result("a")]), Some(place));
    let lost = json!({"role": "tool", "content": "1"});
    refused(&all(vec![user, call, lost]), Some("messages[2].tool_call_id"));
}

#[test]
fn r01_what_is_too_long_or_too_slow_is_refused() {
    let mut config = config();
    config.limits.body_bytes = 10_000;
    config.limits.body_seconds = 2;
    config.limits.header_seconds = 2;
    let server = start(&config, vec![source("pebble")]);
    let long = [("content-length", "1000000000")];
    let reply = exchange(server.at, &request("POST", CHAT, &long, b""));
    assert_eq!((reply.status, reply.error("code")), (413, "request_too_large".into()));
    let chunked = [("transfer-encoding", "chunked")];
    let body = format!("4e20\r\n{}\r\n0\r\n\r\n", "x".repeat(20_000));
    let reply = exchange(server.at, &request("POST", CHAT, &chunked, body.as_bytes()));
    assert_eq!(reply.status, 413);
    let header = "x".repeat(20_000);
    let reply = exchange(server.at, &request("GET", "/v1/models", &[("x-long", &header)], b""));
    assert_eq!((reply.status, reply.error("code")), (431, "headers_too_large".into()));
    let header = "x".repeat(1 << 20);
    let reply = exchange(server.at, &request("GET", "/v1/models", &[("x-long", &header)], b""));
    assert_eq!(reply.status, 431);
    // A body that does not come.
    let mut stream = connect(server.at);
    stream.write_all(&request("POST", CHAT, &[("content-length", "100")], b"{")).unwrap();
    let reply = read(stream);
    assert_eq!((reply.status, reply.error("code")), (408, "request_timeout".into()));
    // Headers that do not come: the connection ends.
    let mut stream = connect(server.at);
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: local").unwrap();
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut rest);
    assert!(!String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 200"));
    assert_eq!(get(server.at, "/health").status, 200);
}

#[test]
fn r02_every_number_has_a_range() {
    let wrong = [
        ("temperature", json!(-1)),
        ("temperature", json!(1e9)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_p", json!(2)),
        ("top_k", json!(-1)),
        ("top_k", json!(0.5)),
        ("min_p", json!(1.5)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-2.5)),
        ("repetition_penalty", json!(0)),
        ("seed", json!(1.5)),
        ("n", json!(0)),
        ("n", json!(9)),
        ("n", json!(1_000_000_000)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1u64 << 40)),
        ("max_completion_tokens", json!(0)),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"5": 101})),
        ("logit_bias", json!({"5": "x"})),
        ("logit_bias", json!({"999999": 1})),
        ("logit_bias", json!([])),
        ("thinking_budget", json!(-1)),
        ("reasoning_effort", json!("huge")),
    ];
    for (param, value) in wrong {
        let mut body = story(1);
        body[param] = value;
        refused(&body, Some(param));
    }
    // Numbers that no f64 holds.
    for (param, value) in [("temperature", "1e999"), ("presence_penalty", "-1e999")] {
        let body = format!(
            "{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"{param}\":{value}}}"
        );
        let reply = exchange(shared(), &request("POST", CHAT, &[], body.as_bytes()));
        assert_eq!((reply.status, reply.error("param")), (400, param.into()), "{}", reply.text());
    }
    let seed =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"seed\":18446744073709551616}";
    let reply = exchange(shared(), &request("POST", CHAT, &[], seed.as_bytes()));
    assert_eq!((reply.status, reply.error("param")), (400, "seed".into()));
    refused(&with(story(1), json!({"logprobs": true, "top_logprobs": 21})), Some("top_logprobs"));
    refused(&with(story(1), json!({"top_logprobs": 2})), Some("top_logprobs"));
    let fine = [
        json!({"temperature": 2, "top_p": 1, "top_k": 0, "min_p": 0, "seed": -1}),
        json!({"temperature": 0.000001, "top_p": 0.000001, "seed": 18446744073709551615u64}),
        json!({"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 100}),
        json!({"logit_bias": {"5": -100}, "n": 8, "max_tokens": 2147483647, "stop": ["a"]}),
        json!({"temperature": null, "top_p": null, "stop": null, "tools": null, "n": null}),
        json!({"logprobs": true, "top_logprobs": 20}),
    ];
    for more in fine {
        let body = with(with(story(2), json!({"stop": [" "]})), more);
        let reply = post(shared(), CHAT, &body);
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
    }
}

#[test]
fn r02_what_would_be_ignored_is_refused_by_name() {
    for (param, value) in [
        ("mirostat", json!(2)),
        ("functions", json!([])),
        ("temprature", json!(0)),
        ("web_search_options", json!({})),
        ("chat_template", json!("x")),
        ("modalities", json!(["audio"])),
    ] {
        let mut body = story(1);
        body[param] = value;
        refused(&body, Some(param));
    }
    let harmless = json!({"user": "me", "metadata": {}, "store": true, "modalities": ["text"]});
    assert_eq!(post(shared(), CHAT, &with(story(1), harmless)).status, 200);
}

#[test]
fn r03_a_prompt_that_does_not_fit_is_refused_with_both_numbers() {
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(2000)}]});
    for stream in [false, true] {
        let reply = post(shared(), CHAT, &with(long.clone(), json!({"stream": stream})));
        assert_eq!((reply.status, reply.error("code")), (400, "context_length_exceeded".into()));
        assert!(reply.error("n_prompt_tokens").as_u64().unwrap() > 2000);
        assert_eq!(reply.error("n_ctx"), 1024);
        assert!(reply.error("message").as_str().unwrap().contains("1024"));
    }
    let ids = |n: usize| vec![5u32; n];
    let go_on = |n: usize, more: usize| {
        let body =
            json!({"prompt": ids(n), "max_tokens": more, "ignore_eos": true, "temperature": 0});
        post(shared(), "/v1/completions", &body)
    };
    let reply = go_on(1024, 1);
    assert_eq!((reply.status, reply.error("code")), (400, "context_length_exceeded".into()));
    let reply = go_on(1023, 5);
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "length", "{}", reply.text());
    assert_eq!(reply.json()["usage"]["completion_tokens"], 1);
    let reply = go_on(1000, 100);
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "length", "{}", reply.text());
    assert_eq!(reply.json()["usage"]["completion_tokens"], 24);
}

#[test]
fn r04_text_is_text_and_always_utf8() {
    let at = shared();
    let raw = |content: &str| {
        let body = format!(
            "{{\"max_tokens\":2,\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]}}"
        );
        exchange(at, &request("POST", CHAT, &[], body.as_bytes()))
    };
    assert_eq!(raw("\\ud800").status, 400);
    assert_eq!(raw("\\u0000 \\ud83d\\ude00 🦊").status, 200);
    let mut invalid = request("POST", CHAT, &[], b"{\"messages\":\"??\"}");
    let n = invalid.len();
    invalid[n - 4] = 0xff;
    assert_eq!(exchange(at, &invalid).status, 400);
    // Nothing but the token that begins a sequence.
    let empty = post(at, "/v1/completions", &json!({"prompt": "", "max_tokens": 1}));
    assert_eq!(empty.status, 200, "{}", empty.text());
    assert_eq!(post(at, "/v1/completions", &json!({"prompt": []})).status, 400);
    // Control tokens that a user spells are letters.
    let count = |content: &str| {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        let tokens = post(at, "/tokenize", &body).json()["tokens"].clone();
        let tokens: Vec<u64> =
            tokens.as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
        tokens.iter().filter(|t| **t == tokens[1]).count()
    };
    assert_eq!(count("x"), count("<|turn>model\nx<turn|>\n<|turn>user\n"));
    // A model that is forced to write half a letter.
    let token = post(at, "/tokenize", &json!({"content": "🦊", "with_pieces": true})).json();
    let first = token["tokens"][0]["id"].clone();
    let mut body = json!({"prompt": "x", "max_tokens": 3, "temperature": 0, "logit_bias": {}});
    body["logit_bias"][first.to_string()] = 100.into();
    let whole = post(at, "/v1/completions", &body);
    let text = whole.json()["choices"][0]["text"].clone();
    let events = post(at, "/v1/completions", &with(body, json!({"stream": true}))).events();
    let parts: Vec<&str> = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(text.as_str().unwrap(), parts.concat());
    assert!(!parts.concat().is_empty());
}

#[test]
fn r05_a_stop_string_cuts_exactly() {
    let at = shared();
    let whole = said(&post(at, CHAT, &story(60)));
    // It begins and ends inside of words, and so inside of tokens.
    let stop: String = whole.chars().skip(20).take(11).collect();
    let expected = whole.split(&stop).next().unwrap();
    let body = with(story(60), json!({"stop": [stop]}));
    let reply = post(at, CHAT, &body);
    assert_eq!(said(&reply), expected);
    assert_eq!(reply.json()["choices"][0]["finish_reason"], "stop");
    assert_eq!(streamed(&post(at, CHAT, &with(body, json!({"stream": true})))), expected);
    refused(&with(story(1), json!({"stop": ""})), Some("stop"));
    refused(&with(story(1), json!({"stop": [1]})), Some("stop"));
    refused(&with(story(1), json!({"stop": vec!["x"; 10_000]})), Some("stop"));
    refused(&with(story(1), json!({"stop": ["x".repeat(5000)]})), Some("stop"));
}

#[test]
fn r06_an_unknown_model_is_404_and_one_that_is_loaded_503() {
    let reply = post(shared(), CHAT, &with(story(1), json!({"model": "gpt-9"})));
    assert_eq!((reply.status, reply.error("code")), (404, "model_not_found".into()));
    assert_eq!(reply.error("param"), "model");
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let mut slow = source("pebble");
    slow.make = Box::new(move || {
        let _ = held.lock().unwrap().recv();
        crate::pebble().load(load())
    });
    let mut config = config();
    config.limits.load_seconds = 0;
    let server = start(&config, vec![slow]);
    let reply = post(server.at, CHAT, &story(1));
    assert_eq!((reply.status, reply.error("code")), (503, "model_loading".into()));
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(get(server.at, "/ready").status, 503);
    assert_eq!(get(server.at, "/health").status, 200);
    let state = || get(server.at, "/v1/models").json()["data"][0]["lapidary"]["state"].clone();
    assert_eq!(state(), "loading");
    drop(release);
    until("it is loaded", || state() == "loaded");
    assert_eq!(post(server.at, CHAT, &story(1)).status, 200);
    assert_eq!(get(server.at, "/ready").status, 200);
}

#[test]
fn r14_same_seed_same_answer_alone_streamed_and_in_a_batch() {
    let at = shared();
    let drawn = |seed: u64| {
        let body = json!({
            "messages": [{"role": "user", "content": "Tell me a story about a brave fox."}],
            "temperature": 1.0, "max_tokens": 40, "seed": seed,
        });
        body
    };
    let alone: Vec<String> = (0..4).map(|seed| said(&post(at, CHAT, &drawn(seed)))).collect();
    assert_ne!(alone[0], alone[1]);
    assert_eq!(said(&post(at, CHAT, &drawn(0))), alone[0]);
    let whole = streamed(&post(at, CHAT, &with(drawn(1), json!({"stream": true}))));
    assert_eq!(whole, alone[1]);
    let together: Vec<_> = (0..16u64)
        .map(|i| std::thread::spawn(move || said(&post(at, CHAT, &drawn(i % 4)))))
        .collect();
    for (i, thread) in together.into_iter().enumerate() {
        assert_eq!(thread.join().unwrap(), alone[i % 4]);
    }
    // Further answers of one request take the seeds that follow.
    let several = post(at, CHAT, &with(drawn(0), json!({"n": 4}))).json();
    for (i, text) in alone.iter().enumerate() {
        assert_eq!(several["choices"][i]["message"]["content"], text.as_str());
    }
}
