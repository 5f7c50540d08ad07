//! Ollama's API.

use serde_json::{Value, json};

use crate::client::{Reply, exchange, get, post, request};
use crate::{config, shared, source, start, until, with};

fn chat(more: Value) -> Reply {
    let body = json!({
        "model": "pebble",
        "stream": false,
        "options": {"temperature": 0, "num_predict": 40},
        "messages": [{"role": "user", "content": "Tell me a story about a brave fox."}],
    });
    post(shared(), "/api/chat", &with(body, more))
}

fn fine(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn lines(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/x-ndjson"));
    reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn tools() -> Value {
    let city = json!({"type": "string", "description": "The name of the city.", "enum": null});
    json!([{"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather in a city.",
        "parameters": {"type": "object", "$defs": null, "items": null, "required": ["city"],
            "properties": {"city": city}},
    }}])
}

#[test]
fn lines_add_up_to_the_answer() {
    let whole = fine(&chat(json!({})));
    assert_eq!(whole["model"], "pebble");
    assert_eq!(whole["done"], true);
    assert_eq!(whole["done_reason"], "length");
    assert_eq!(whole["eval_count"], 40);
    for field in ["total_duration", "load_duration", "prompt_eval_count", "eval_duration"] {
        assert!(whole[field].is_u64(), "{field}: {whole}");
    }
    let all = lines(&chat(json!({"stream": true})));
    let (last, rest) = all.split_last().unwrap();
    assert!(rest.iter().all(|line| line["done"] == false));
    let text: String = rest.iter().map(|l| l["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["message"]["content"].as_str().unwrap());
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("length")));
    assert_eq!(last["eval_count"], 40);
    // Without a word about it, an answer is a stream.
    let body = json!({"model": "pebble", "prompt": "Hi", "options": {"num_predict": 3}});
    let all = lines(&post(shared(), "/api/generate", &body));
    assert!(all.last().unwrap()["done"] == true && all[0]["response"].is_string());
}

#[test]
fn a_prompt_is_answered_as_a_conversation_or_continued_as_it_is() {
    let ask = |more: Value| {
        let body = json!({"model": "pebble:latest", "stream": false,
            "options": {"temperature": 0, "num_predict": 24}});
        fine(&post(shared(), "/api/generate", &with(body, more)))
    };
    let answered =
        ask(json!({"prompt": "Tell me a story about a brave fox.", "system": "Be brief."}));
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Tell me a story about a brave fox."}]);
    let same = fine(&chat(json!({"messages": messages,
        "options": {"temperature": 0, "num_predict": 24}})));
    assert_eq!(answered["response"], same["message"]["content"]);
    let raw = ask(json!({"prompt": "Once upon a time", "raw": true}));
    assert_ne!(raw["response"], ask(json!({"prompt": "Once upon a time"}))["response"]);
    for (more, name) in [
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "template": "{{ .Prompt }}"}), "template"),
        (json!({"prompt": "x", "context": [1, 2]}), "context"),
        (json!({"prompt": "x", "raw": true, "system": "Be brief."}), "system"),
        (json!({"prompt": "x", "raw": true, "think": true}), "think"),
        (json!({"prompt": "x", "raw": true, "format": "json"}), "format"),
    ] {
        let body = with(json!({"model": "pebble"}), more);
        let refused = post(shared(), "/api/generate", &body);
        assert_eq!(refused.status, 400);
        assert!(refused.json()["error"].as_str().unwrap().contains(name));
    }
}

#[test]
fn tools_are_called_and_answered() {
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    for stream in [false, true] {
        let reply = chat(json!({"messages": [question], "tools": tools(), "stream": stream}));
        let message = match stream {
            false => fine(&reply)["message"].clone(),
            true => lines(&reply)
                .into_iter()
                .map(|line| line["message"].clone())
                .find(|m| m.get("tool_calls").is_some())
                .expect("a call"),
        };
        let call = &message["tool_calls"][0]["function"];
        assert_eq!(call["name"], "get_weather");
        assert!(call["arguments"]["city"].is_string(), "{message}");
        let result = json!({"role": "tool", "tool_name": "get_weather", "content": "sunny"});
        let bare = json!({"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": call["name"], "arguments": call["arguments"]}}]});
        let said = fine(&chat(json!({"messages": [question, bare, result], "tools": tools()})));
        assert!(!said["message"]["content"].as_str().unwrap().is_empty(), "{said}");
    }
}

#[test]
fn formats_hold_with_and_without_thinking() {
    let schema = json!({"type": "object", "properties": {"animal": {"enum": ["fox", "bear"]}},
        "required": ["animal"], "additionalProperties": false});
    let options = json!({"temperature": 0, "num_predict": 200});
    for think in [json!(null), json!(false), json!(true), json!("low"), json!(20)] {
        let answer = fine(&chat(json!({"format": schema, "think": think, "options": options})));
        let text = answer["message"]["content"].as_str().unwrap();
        let said: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {answer}"));
        assert!(said["animal"].is_string());
    }
    let any = fine(&chat(json!({"format": "json", "options": options})));
    let text = any["message"]["content"].as_str().unwrap();
    // It may be cut off by its length, and begins as an object whatever it is.
    assert!(text.trim_start().starts_with('{'), "{text}");
    assert_eq!(chat(json!({"format": "yaml"})).status, 400);
    assert_eq!(chat(json!({"think": "hard"})).status, 400);
}

#[test]
fn the_context_is_said_and_obeyed() {
    let options = |n: usize| json!({"temperature": 0, "num_predict": -1, "num_ctx": n});
    let short = fine(&chat(json!({"options": options(40)})));
    let n = |name: &str| short[name].as_u64().unwrap();
    assert_eq!(n("prompt_eval_count") + n("eval_count"), 40);
    assert_eq!(short["done_reason"], "length");
    let refused = chat(json!({"options": options(5)}));
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("context holds 5"));
    let more = json!({"options": {"num_ctx": 100_000, "num_predict": 2}});
    let said = fine(&chat(more))["warnings"].to_string();
    assert!(said.contains("num_ctx") && said.contains("1024"), "{said}");
    let loaded = fine(&get(shared(), "/api/ps"));
    assert_eq!(loaded["models"][0]["context_length"], 1024);
    let shown = fine(&post(shared(), "/api/show", &json!({"model": "pebble"})));
    let family = shown["details"]["family"].as_str().unwrap();
    assert_eq!(shown["model_info"][format!("{family}.context_length")], 1024);
    let capabilities = shown["capabilities"].to_string();
    assert!(capabilities.contains("tools") && capabilities.contains("vision"), "{capabilities}");
    let tags = fine(&get(shared(), "/api/tags"));
    assert_eq!(tags["models"][0]["name"], "pebble");
    assert!(fine(&get(shared(), "/api/version"))["version"].is_string());
}

#[test]
fn embeddings_are_those_of_the_other_api() {
    let texts = ["a fox", "a bear", "x"];
    let embed = |input: Value| {
        fine(&post(shared(), "/api/embed", &json!({"model": "pebble", "input": input})))
    };
    let all = embed(json!(texts));
    assert_eq!(all["embeddings"].as_array().unwrap().len(), 3);
    assert_eq!(
        embed(json!("a fox"))["embeddings"][0].as_array().unwrap().len(),
        all["embeddings"][0].as_array().unwrap().len()
    );
    let body = json!({"model": "pebble", "input": texts});
    let other = fine(&post(shared(), "/v1/embeddings", &body));
    let near = |a: &Value, b: &Value| {
        let of = |v: &Value| {
            v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>()
        };
        of(a).iter().zip(of(b)).all(|(a, b)| (a - b).abs() < 1e-4)
    };
    for i in 0..3 {
        assert!(near(&all["embeddings"][i], &other["data"][i]["embedding"]), "{i}");
    }
    let old = json!({"model": "pebble", "prompt": "a fox"});
    let old = fine(&post(shared(), "/api/embeddings", &old));
    assert!(old["embedding"].as_array().unwrap().len() > 8);
    let long = "word ".repeat(3000);
    let body = |truncate: Value| json!({"model": "pebble", "input": long, "truncate": truncate});
    assert_eq!(post(shared(), "/api/embed", &body(Value::Null)).status, 400);
    let cut = fine(&post(shared(), "/api/embed", &body(true.into())));
    assert!(cut["warnings"].to_string().contains("cut"), "{cut}");
    assert_eq!(cut["prompt_eval_count"], 1024);
}

#[test]
fn images_are_seen() {
    let bytes = lapidary_server::service::base64::encode(&crate::anthropic::drawing());
    let message =
        |images: Value| json!([{"role": "user", "content": "What is this?", "images": images}]);
    let seen = fine(&chat(json!({"messages": message(json!([bytes]))})));
    let blind = fine(&chat(json!({"messages": message(json!([]))})));
    assert!(seen["prompt_eval_count"].as_u64() > blind["prompt_eval_count"].as_u64());
    let body =
        json!({"model": "pebble", "prompt": "What is this?", "images": [bytes], "stream": false});
    fine(&post(shared(), "/api/generate", &body));
    for wrong in [json!(["AAAA"]), json!(["http://a/b.png"]), json!("x"), json!([1])] {
        let refused = chat(json!({"messages": message(wrong.clone())}));
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.text());
    }
}

#[test]
fn a_model_is_loaded_and_let_go_without_a_question() {
    let server = start(&config(), vec![source("pebble")]);
    let ask = |body: Value| fine(&post(server.at, "/api/generate", &body));
    // The second is as Ollama's own program writes it.
    assert_eq!(ask(json!({"model": "pebble", "keep_alive": "10m"}))["done_reason"], "load");
    assert_eq!(ask(json!({"model": "pebble", "keep_alive": "10m0s"}))["done_reason"], "load");
    let loaded = fine(&get(server.at, "/api/ps"));
    assert!(loaded["models"][0]["expires_at"].as_str().unwrap() < "9999", "{loaded}");
    assert_eq!(ask(json!({"model": "pebble", "keep_alive": -1}))["done_reason"], "load");
    let loaded = fine(&get(server.at, "/api/ps"));
    assert!(loaded["models"][0]["expires_at"].as_str().unwrap().starts_with("9999"), "{loaded}");
    assert_eq!(ask(json!({"model": "pebble", "keep_alive": 0}))["done_reason"], "unload");
    until("nothing is loaded", || {
        fine(&get(server.at, "/api/ps"))["models"].as_array().unwrap().is_empty()
    });
    let body = json!({"model": "pebble", "messages": [], "keep_alive": "soon"});
    assert_eq!(post(server.at, "/api/chat", &body).status, 400);
}

#[test]
fn a_model_that_is_served_is_pulled_and_no_other_thing_is_done() {
    let pull = |body: Value| post(shared(), "/api/pull", &body);
    assert_eq!(lines(&pull(json!({"model": "pebble"}))), [json!({"status": "success"})]);
    let whole = pull(json!({"name": "pebble:latest", "stream": false, "insecure": false}));
    assert_eq!(fine(&whole)["status"], "success");
    let other = pull(json!({"model": "gemma3"}));
    assert_eq!(other.status, 404);
    let said = other.json()["error"].as_str().unwrap().to_string();
    assert!(said.contains("gemma3") && said.contains("lapidary serve"), "{said}");
    for (method, path) in [
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
    ] {
        let reply = exchange(shared(), &request(method, path, &[], b"{\"model\":\"pebble\"}"));
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.json()["error"].as_str().unwrap().contains("lapidary serve"), "{path}");
    }
}

#[test]
fn what_is_wrong_is_a_text() {
    let cases = [
        (json!({"options": {"temperature": -1}}), 400, "options.temperature"),
        (json!({"options": {"top_p": 2}}), 400, "options.top_p"),
        (json!({"options": {"num_ctx": 0}}), 400, "options.num_ctx"),
        (json!({"options": {"mirostat": 1}}), 400, "options.mirostat"),
        (json!({"options": {"stop": [""]}}), 400, "stop"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), 400, "messages[0].role"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), 400, "messages[0]"),
        (json!({"top_logprobs": 21}), 400, "top_logprobs"),
        (json!({"model": "nobody"}), 404, "nobody"),
        (json!({"model": null}), 400, "model"),
    ];
    for (more, status, word) in cases {
        let refused = chat(more.clone());
        assert_eq!(refused.status, status, "{more}: {}", refused.text());
        let error = refused.json()["error"].as_str().unwrap().to_string();
        assert!(error.contains(word), "{error}");
    }
    let told = fine(&chat(json!({"logprobs": true, "top_logprobs": 2})));
    assert_eq!(told["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), 2);
}
