//! Anthropic's `/v1/messages`.

use serde_json::{Value, json};

use crate::client::{Reply, post};
use crate::{shared, with};

const MESSAGES: &str = "/v1/messages";

fn ask(more: Value) -> Reply {
    let body = json!({
        "model": "pebble",
        "max_tokens": 40,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me a story about a brave fox."}],
    });
    post(shared(), MESSAGES, &with(body, more))
}

fn tools() -> Value {
    let city = json!({"type": "string", "description": "The name of the city."});
    json!([
        {"name": "get_time", "description": "Get the current time in a city.",
         "input_schema": {"type": "object", "properties": {"city": city}, "required": ["city"]}},
        {"name": "get_weather", "description": "Get the current weather in a city.",
         "input_schema": {"type": "object", "properties": {"city": city}, "required": ["city"]}},
    ])
}

pub fn drawing() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../pebble/heldout/images/drawing17.png");
    std::fs::read(path).unwrap()
}

fn fine(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// Names of events, each once for a run of them.
fn names(reply: &Reply) -> Vec<String> {
    let text = reply.text();
    let names = text.lines().filter_map(|line| line.strip_prefix("event: ")).map(String::from);
    let mut names: Vec<String> = names.filter(|name| name != "ping").collect();
    names.dedup();
    names
}

/// What a stream of events adds up to, as Anthropic's clients read it.
fn accumulated(reply: &Reply) -> Value {
    let mut message = Value::Null;
    let mut json = String::new();
    for event in reply.events() {
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(event["index"], content.len());
                content.push(event["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let at = event["index"].as_u64().unwrap() as usize;
                let (block, delta) = (&mut message["content"][at], &event["delta"]);
                let mut add = |name: &str| {
                    let more = delta[name].as_str().unwrap();
                    block[name] = format!("{}{more}", block[name].as_str().unwrap()).into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => add("text"),
                    "thinking_delta" => add("thinking"),
                    "signature_delta" => add("signature"),
                    "input_json_delta" => json += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let at = event["index"].as_u64().unwrap() as usize;
                let block = &mut message["content"][at];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&json).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            "message_stop" | "ping" => {}
            other => panic!("{other}: {event}"),
        }
    }
    message
}

/// The same answer but for names and what was cached.
fn without_names(mut message: Value) -> Value {
    message["id"] = Value::Null;
    message["usage"] = message["usage"]["output_tokens"].clone();
    for block in message["content"].as_array_mut().unwrap() {
        if block["type"] == "tool_use" {
            block["id"] = Value::Null;
        }
    }
    message
}

#[test]
fn a_message_has_all_that_clients_look_for() {
    let message = fine(&ask(json!({})));
    assert_eq!(message["type"], "message");
    assert_eq!(message["role"], "assistant");
    assert_eq!(message["model"], "pebble");
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(message["content"][0]["type"], "text");
    assert!(message["content"][0]["text"].as_str().unwrap().len() > 20);
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["stop_sequence"], Value::Null);
    let usage = &message["usage"];
    assert_eq!(usage["output_tokens"], 40);
    let n = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    let body = json!({"model": "pebble",
        "messages": [{"role": "user", "content": "Tell me a story about a brave fox."}]});
    let counted = fine(&post(shared(), "/v1/messages/count_tokens", &body));
    assert_eq!(counted["input_tokens"], n);
}

#[test]
fn a_stream_adds_up_to_the_message() {
    let cases = [
        json!({}),
        json!({"stop_sequences": ["fox"]}),
        json!({"tools": tools(), "tool_choice": {"type": "any"}, "max_tokens": 80}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 10}, "max_tokens": 60}),
    ];
    for case in cases {
        let whole = fine(&ask(case.clone()));
        let stream = ask(with(case.clone(), json!({"stream": true})));
        assert_eq!(stream.status, 200, "{}", stream.text());
        assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
        let names = names(&stream);
        assert_eq!(names.first().unwrap(), "message_start");
        assert_eq!(names[names.len() - 2..], ["message_delta", "message_stop"]);
        let n_starts = names.iter().filter(|n| *n == "content_block_start").count();
        assert_eq!(n_starts, names.iter().filter(|n| *n == "content_block_stop").count());
        assert_eq!(without_names(accumulated(&stream)), without_names(whole), "{case}");
    }
}

#[test]
fn a_stop_sequence_is_named() {
    let whole = fine(&ask(json!({})));
    let text = whole["content"][0]["text"].as_str().unwrap().to_string();
    let word = text.split(' ').nth(3).unwrap();
    let stopped = fine(&ask(json!({"stop_sequences": ["not there", word]})));
    assert_eq!(stopped["stop_reason"], "stop_sequence");
    assert_eq!(stopped["stop_sequence"], word);
    assert!(!stopped["content"][0]["text"].as_str().unwrap().contains(word));
}

#[test]
fn a_tool_is_called_and_its_result_is_read() {
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    let called = fine(&ask(json!({"messages": [question], "tools": tools(), "max_tokens": 80})));
    assert_eq!(called["stop_reason"], "tool_use", "{called}");
    let call = called["content"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(call["type"], "tool_use");
    assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
    assert!(call["input"]["city"].is_string());
    let result = json!({"role": "user", "content": [{
        "type": "tool_result", "tool_use_id": call["id"],
        "content": [{"type": "text", "text": "{\"weather\": \"sunny\"}"}],
    }]});
    let history = json!([question, {"role": "assistant", "content": called["content"]}, result]);
    let said = fine(&ask(json!({"messages": history, "tools": tools(), "max_tokens": 40})));
    assert_eq!(said["content"][0]["type"], "text", "{said}");
    // A result of nothing is named.
    let lost = json!([question, result]);
    let refused = ask(json!({"messages": lost, "tools": tools()}));
    assert_eq!(refused.status, 400);
    assert_eq!(refused.error("type"), "invalid_request_error");
    assert!(refused.error("message").as_str().unwrap().starts_with("messages.1"));
}

#[test]
fn choices_of_tools() {
    let question = json!([{"role": "user", "content": "What is the weather in Paris?"}]);
    let ask = |choice: Value| {
        let more = json!({"messages": question, "tools": tools(), "tool_choice": choice,
            "max_tokens": 80});
        fine(&ask(more))
    };
    let calls = |message: &Value| {
        let content = message["content"].as_array().unwrap().iter();
        content.filter(|b| b["type"] == "tool_use").cloned().collect::<Vec<Value>>()
    };
    assert!(calls(&ask(json!({"type": "none"}))).is_empty());
    let one = ask(json!({"type": "tool", "name": "get_time"}));
    assert!(calls(&one).iter().all(|call| call["name"] == "get_time"));
    assert!(!calls(&one).is_empty());
    let any = ask(json!({"type": "any", "disable_parallel_tool_use": true}));
    assert_eq!(calls(&any).len(), 1);
}

#[test]
fn agents_are_understood() {
    let block = |text: &str| json!({"type": "text", "text": text});
    let system = |hash: &str| {
        let long = "You are a helpful assistant who answers in one short sentence. ".repeat(6);
        json!([
            block(&format!("x-anthropic-billing-header: cc_version=2.1; cch={hash};")),
            with(block(&long), json!({"cache_control": {"type": "ephemeral"}}))
        ])
    };
    let agent = |hash: &str| {
        let searches = json!({"type": "web_search_20250305", "name": "web_search"});
        let mut all = tools();
        all.as_array_mut().unwrap().push(searches);
        ask(json!({
            "system": system(hash),
            "tools": all,
            "metadata": {"user_id": "x"},
            "context_management": {"edits": []},
            "messages": [
                {"role": "user", "content": [block("<system-reminder>x</system-reminder>"),
                    block("Hello!")]},
                {"role": "system", "content": "Mind the gap."},
            ],
        }))
    };
    let first = fine(&agent("aaa"));
    let warnings = first["warnings"].to_string();
    assert!(warnings.contains("tools.2") && warnings.contains("context_management"), "{warnings}");
    // What changes from request to request does not cost the prefix.
    let usage = &fine(&agent("bbb"))["usage"];
    let (read, new) = (usage["cache_read_input_tokens"].as_u64(), usage["input_tokens"].as_u64());
    assert!(read.unwrap() > 80 && new.unwrap() <= 2, "{usage}");
}

#[test]
fn images_are_seen_and_nothing_is_fetched() {
    let image = |source: Value| {
        let content =
            json!([{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]);
        ask(json!({"messages": [{"role": "user", "content": content}], "max_tokens": 10}))
    };
    let bytes = lapidary_server::service::base64::encode(&drawing());
    let source = json!({"type": "base64", "media_type": "image/png", "data": bytes});
    let seen = fine(&image(source.clone()));
    assert!(seen["usage"].to_string().len() > 10);
    // An image that a tool returned is seen, too.
    let history = json!([
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "get_time",
            "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
            "content": [{"type": "text", "text": "here"}, {"type": "image", "source": source}]}]},
    ]);
    fine(&ask(json!({"messages": history, "tools": tools(), "max_tokens": 5})));
    for source in [
        json!({"type": "url", "url": "http://169.254.169.254/"}),
        json!({"type": "file", "file_id": "f"}),
        json!({"type": "base64", "media_type": "image/png", "data": "AAAA"}),
        json!({"type": "base64", "media_type": "text/html", "data": "AAAA"}),
        json!(3),
    ] {
        let refused = image(source.clone());
        assert_eq!(refused.status, 400, "{source}: {}", refused.text());
    }
}

#[test]
fn answers_are_held_to_a_schema() {
    let schema = json!({"type": "object", "properties": {"animal": {"enum": ["fox", "bear"]}},
        "required": ["animal"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "schema": schema});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let message = fine(&ask(with(more, json!({"max_tokens": 100}))));
        let text = message["content"][0]["text"].as_str().unwrap();
        let said: Value = serde_json::from_str(text).unwrap();
        assert!(["fox", "bear"].contains(&said["animal"].as_str().unwrap()));
    }
    let cant = json!({"type": "json_schema", "schema": {"type": "object", "not": {}}});
    let refused = ask(json!({"output_config": {"format": cant}}));
    assert_eq!(refused.status, 400);
    assert!(refused.error("message").as_str().unwrap().contains("`not`"));
}

#[test]
fn what_is_wrong_is_a_400_in_anthropic_s_words() {
    let cases = [
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 3}), "top_p"),
        (json!({"top_k": -1}), "top_k"),
        (json!({"messages": []}), "messages"),
        (json!({"stop_sequences": [""]}), "stop_sequences.0"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 40}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "sometimes"}}), "thinking.type"),
        (json!({"tool_choice": {"type": "tool", "name": "nobody"}}), "tool_choice"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (json!({"thread": {"type": "create"}}), "thread"),
        (json!({"colour": "red"}), "colour"),
        (json!({"output_config": {"effort": "huge"}}), "output_config.effort"),
    ];
    for (more, param) in cases {
        let refused = ask(more.clone());
        assert_eq!(refused.status, 400, "{more}: {}", refused.text());
        let body = refused.json();
        assert_eq!(body["type"], "error");
        assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
        assert_eq!(body["error"]["param"], param, "{body}");
        assert_eq!(body["request_id"], refused.header("request-id").unwrap());
    }
    let lost = ask(json!({"model": "claude"}));
    assert_eq!((lost.status, lost.error("type")), (404, json!("not_found_error")));
    let wrong = ask(json!({"messages": "x"}));
    assert_eq!((wrong.status, wrong.error("type")), (400, json!("invalid_request_error")));
    let long = "word ".repeat(3000);
    let over = ask(json!({"messages": [{"role": "user", "content": long}]}));
    assert_eq!((over.status, over.error("code")), (400, json!("context_length_exceeded")));
    // Clients that would rather have the server keep the conversation know this code, and go on without.
    let refused = ask(json!({"thread": {"type": "create"}})).json();
    assert_eq!(refused["error"]["details"]["error_code"], "thread_unsupported_request");
}
