//! OpenAI's routes, as its clients read them.

use serde_json::{Value, json};

use crate::client::{Open, exchange, get, post, request};
use crate::{CHAT, config, hold, said, shared, source, start, story, streamed, weather, with};

#[test]
fn a_stream_says_what_the_whole_says() {
    let whole = post(shared(), CHAT, &story(30));
    let body = with(story(30), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = post(shared(), CHAT, &body);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(streamed(&reply), said(&whole));
    let events = reply.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, before) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], whole.json()["usage"]["completion_tokens"]);
    assert!(last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    assert_eq!(before["choices"][0]["finish_reason"], "length");
    assert!(before["timings"]["predicted_per_second"].as_f64().unwrap() > 0.0);
    for event in &events {
        assert_eq!(event["id"], events[0]["id"]);
        assert_eq!(event["object"], "chat.completion.chunk");
        assert!(event["created"].as_u64().unwrap() > 1_700_000_000);
    }
    let alone = json!({"stream_options": {"include_usage": true}});
    assert_eq!(post(shared(), CHAT, &with(story(1), alone)).error("param"), "stream_options");
}

#[test]
fn silence_is_filled_with_comments() {
    let server = start(&config(), vec![source("pebble")]);
    let held = hold(&server.engine("pebble"));
    let mut stream = Open::post(server.at, CHAT, &with(story(3), json!({"stream": true})));
    assert!(stream.line(": ping").is_some());
    assert!(stream.line(": ping").is_some());
    drop(held);
    assert!(stream.line("data: [DONE]").is_some());
}

#[test]
fn a_tool_is_called_and_its_result_is_used() {
    let user = json!({"role": "user", "content": "What is the weather in Paris?"});
    let body = json!({"messages": [user], "tools": [weather()], "temperature": 0});
    let reply = post(shared(), CHAT, &body).json();
    let message = reply["choices"][0]["message"].clone();
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls", "{reply}");
    assert_eq!(message["content"], Value::Null);
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"]["name"], "get_weather");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Paris"}));
    let result =
        json!({"role": "tool", "tool_call_id": call["id"], "content": "{\"weather\": \"sunny\"}"});
    let body = json!({"messages": [user, message, result], "tools": [weather()], "temperature": 0});
    assert!(said(&post(shared(), CHAT, &body)).contains("sunny"));
    // Tools and a schema in one request: a call, or JSON.
    let format = json!({"type": "json_object"});
    let body = json!({"messages": [user], "tools": [weather()], "temperature": 0, "response_format": format});
    let reply = post(shared(), CHAT, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn log_probabilities_belong_to_the_text() {
    let body = with(story(12), json!({"logprobs": true, "top_logprobs": 3}));
    let reply = post(shared(), CHAT, &body);
    let content = reply.json()["choices"][0]["logprobs"]["content"].clone();
    let content = content.as_array().unwrap();
    let text: String = content.iter().map(|t| t["token"].as_str().unwrap()).collect();
    assert_eq!(text, said(&reply));
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // The likeliest is taken.
        assert_eq!(top[0]["token"], token["token"]);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0 && token["bytes"].is_array());
    }
    let events = post(shared(), CHAT, &with(body, json!({"stream": true}))).events();
    let parts = events.iter().filter_map(|e| e["choices"][0]["logprobs"]["content"].as_array());
    let streamed: Vec<Value> = parts.flatten().cloned().collect();
    assert_eq!(&streamed, content);
}

#[test]
fn several_answers_have_their_numbers() {
    let drawn = with(story(10), json!({"n": 3, "temperature": 1.0, "seed": 5}));
    let whole = post(shared(), CHAT, &drawn).json();
    let events = post(shared(), CHAT, &with(drawn, json!({"stream": true}))).events();
    for i in 0..3 {
        let own = |e: &&Value| e["choices"][0]["index"] == i;
        let text: String = events
            .iter()
            .filter(own)
            .filter_map(|e| e["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(whole["choices"][i]["message"]["content"], text);
    }
    let new = whole["usage"]["completion_tokens"].as_u64().unwrap();
    assert!(new > 10 && new <= 30, "{new}");
}

#[test]
fn a_thought_is_told_apart_and_bounded() {
    let body = json!({
        "messages": [{"role": "user", "content": "What is 2 + 2?"}],
        "temperature": 0, "max_tokens": 100, "reasoning_effort": "low",
    });
    let reply = post(shared(), CHAT, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.json().get("warnings").is_none());
    for word in ["minimal", "medium", "high", "xhigh", "max"] {
        let more = json!({"reasoning_effort": word, "max_tokens": 1});
        assert_eq!(post(shared(), CHAT, &with(body.clone(), more)).status, 200, "{word}");
    }
    let off = post(shared(), CHAT, &with(body.clone(), json!({"reasoning_effort": "none"})));
    assert!(off.json()["choices"][0]["message"].get("reasoning_content").is_none());
    let budget = json!({"reasoning_effort": null, "thinking_budget": 5, "max_tokens": 60});
    let reply = post(shared(), CHAT, &with(body, budget)).json();
    let thought = &reply["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert!(thought.as_u64().unwrap() <= 8, "{reply}");
}

#[test]
fn plain_text_goes_on_and_is_echoed() {
    let body = json!({"prompt": "Once upon a", "max_tokens": 6, "temperature": 0, "logprobs": 2});
    let plain = post(shared(), "/v1/completions", &body).json();
    let text = plain["choices"][0]["text"].as_str().unwrap().to_string();
    let echoed =
        post(shared(), "/v1/completions", &with(body.clone(), json!({"echo": true}))).json();
    let choice = &echoed["choices"][0];
    assert_eq!(choice["text"], format!("Once upon a{text}"));
    let logprobs = &choice["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    let n = list("tokens").len();
    assert_eq!(list("token_logprobs").len(), n);
    assert_eq!(list("top_logprobs").len(), n);
    assert_eq!(list("text_offset").len(), n);
    assert_eq!(list("token_logprobs")[0], Value::Null);
    // Each token stands where it is said to.
    let whole: Vec<char> = format!("Once upon a{text}").chars().collect();
    for (token, offset) in list("tokens").iter().zip(list("text_offset")).skip(1) {
        let token: Vec<char> = token.as_str().unwrap().chars().collect();
        let at = offset.as_u64().unwrap() as usize;
        assert_eq!(whole[at..at + token.len()], token);
    }
    // What the answer's tokens have is what they have as a prompt.
    let scored = json!({"prompt": format!("Once upon a{text}"), "max_tokens": 0, "echo": true, "logprobs": 1});
    let scored = post(shared(), "/v1/completions", &scored);
    assert_eq!(scored.status, 200, "{}", scored.text());
    let scored = scored.json()["choices"][0]["logprobs"]["token_logprobs"].clone();
    let scored: Vec<f64> =
        scored.as_array().unwrap().iter().skip(1).map(|x| x.as_f64().unwrap()).collect();
    let said: Vec<f64> =
        list("token_logprobs").iter().skip(1).map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(scored.len(), said.len());
    for (a, b) in scored.iter().zip(&said) {
        assert!((a - b).abs() < 0.05, "{scored:?} {said:?}");
    }
    let streamed = with(body, json!({"echo": true, "stream": true}));
    let events = post(shared(), "/v1/completions", &streamed).events();
    let parts: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(choice["text"], parts);
    let tokens = events.iter().filter_map(|e| e["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(tokens.flatten().cloned().collect::<Vec<_>>(), list("tokens"));
}

#[test]
fn several_prompts_are_answered_in_order() {
    let one = |prompt: &str| {
        let body = json!({"prompt": prompt, "max_tokens": 5, "temperature": 0});
        post(shared(), "/v1/completions", &body).json()["choices"][0]["text"].clone()
    };
    let body =
        json!({"prompt": ["Once upon", "The fox"], "max_tokens": 5, "temperature": 0, "n": 2});
    let reply = post(shared(), "/v1/completions", &body).json();
    let texts: Vec<Value> =
        reply["choices"].as_array().unwrap().iter().map(|c| c["text"].clone()).collect();
    assert_eq!(texts, [one("Once upon"), one("Once upon"), one("The fox"), one("The fox")]);
    let refused = post(shared(), "/v1/completions", &json!({"prompt": "x", "suffix": "y"}));
    assert_eq!((refused.status, refused.error("param")), (400, "suffix".into()));
    assert!(refused.error("message").as_str().unwrap().contains("suffix"));
    for prompt in [json!(null), json!(5), json!([[]]), json!(["x", 5]), json!(vec!["x"; 33])] {
        assert_eq!(
            post(shared(), "/v1/completions", &json!({"prompt": prompt})).status,
            400,
            "{prompt}"
        );
    }
    let unknown = post(shared(), "/v1/completions", &json!({"prompt": [99_999_999]}));
    assert_eq!(unknown.status, 400, "{}", unknown.text());
}

#[test]
fn embeddings_have_length_one_and_say_what_they_are() {
    let body = json!({"input": ["a fox", "a fox", "the weather in Paris"]});
    let reply = post(shared(), "/v1/embeddings", &body).json();
    let vector = |i: usize| -> Vec<f64> {
        reply["data"][i]["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_f64().unwrap())
            .collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert!((dot(&vector(0), &vector(0)) - 1.0).abs() < 1e-4);
    assert!((dot(&vector(0), &vector(1)) - 1.0).abs() < 1e-3);
    assert!(dot(&vector(0), &vector(2)) < 0.999);
    assert!(reply["lapidary"]["pooling"].as_str().unwrap().contains("mean"));
    assert!(reply["usage"]["prompt_tokens"].as_u64().unwrap() > 5);
    let coded = with(body.clone(), json!({"encoding_format": "base64"}));
    let coded = post(shared(), "/v1/embeddings", &coded).json()["data"][0]["embedding"].clone();
    let bytes = lapidary_server::service::base64::decode(coded.as_str().unwrap()).unwrap();
    let first = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    assert!((f64::from(first) - vector(0)[0]).abs() < 1e-3);
    assert_eq!(bytes.len(), 4 * vector(0).len());
    let n = vector(0).len();
    assert_eq!(
        post(shared(), "/v1/embeddings", &with(body.clone(), json!({"dimensions": n}))).status,
        200
    );
    let fewer = post(shared(), "/v1/embeddings", &with(body, json!({"dimensions": 5})));
    assert_eq!(fewer.error("param"), "dimensions");
    assert_eq!(post(shared(), "/v1/embeddings", &json!({"input": 5})).error("param"), "input");
    let many = json!({"input": vec!["fox"; 100]});
    assert_eq!(
        post(shared(), "/v1/embeddings", &many).json()["data"].as_array().unwrap().len(),
        100
    );
}

/// What coding agents send to this API when they are made for another.
#[test]
fn lines_that_change_do_not_cost_the_prefix() {
    let long = "You are a helpful assistant who answers in one short sentence. ".repeat(6);
    let agent = |hash: &str, is_one: bool| {
        let billing = format!("x-anthropic-billing-header: cc_version=2.1; cch={hash};");
        let content = match is_one {
            true => json!(format!("{billing}\n{long}")),
            false => json!([{"type": "text", "text": billing}, {"type": "text", "text": long}]),
        };
        json!({"temperature": 0, "max_tokens": 5, "messages": [
            {"role": "system", "content": content}, {"role": "user", "content": "Hello!"}]})
    };
    for is_one in [true, false] {
        let first = post(shared(), CHAT, &agent("aaa", is_one)).json();
        let usage = post(shared(), CHAT, &agent("bbb", is_one)).json()["usage"].clone();
        assert_eq!(usage["prompt_tokens"], first["usage"]["prompt_tokens"]);
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let prompt = usage["prompt_tokens"].as_u64().unwrap();
        assert!(cached * 10 > prompt * 9, "{usage}");
    }
    // Nothing else of the instructions is lost.
    let said = |messages: Value| {
        post(shared(), "/tokenize", &json!({"messages": messages})).json()["count"].clone()
    };
    let user = json!({"role": "user", "content": "Hello!"});
    let plain = said(json!([{"role": "system", "content": "Be brief."}, user]));
    let billed = json!("x-anthropic-billing-header: a;\nBe brief.");
    assert_eq!(said(json!([{"role": "system", "content": billed}, user])), plain);
    let alone = json!({"role": "system", "content": "x-anthropic-billing-header: a;"});
    assert_eq!(said(json!([alone, user])), said(json!([user])));
}

#[test]
fn a_shorter_context_is_obeyed_on_every_route() {
    let fox = "Tell me a story about a brave fox.";
    let ask = |path: &str, n: Value| {
        let body = json!({"messages": [{"role": "user", "content": fox}], "prompt": fox,
            "input": fox, "temperature": 0, "max_tokens": 200, "options": {"num_ctx": n}});
        let fields: &[&str] = match path {
            CHAT => &["messages", "max_tokens"],
            "/v1/completions" => &["prompt", "max_tokens"],
            _ => &["input"],
        };
        let kept = body.as_object().unwrap().iter().filter(|(name, _)| {
            fields.contains(&name.as_str()) || ["temperature", "options"].contains(&name.as_str())
        });
        post(shared(), path, &kept.map(|(k, v)| (k.clone(), v.clone())).collect())
    };
    for path in [CHAT, "/v1/completions", "/v1/responses"] {
        let usage = ask(path, 40.into()).json()["usage"].clone();
        assert_eq!(usage["total_tokens"], 40, "{path}: {usage}");
        let refused = ask(path, 5.into());
        assert_eq!(refused.error("code"), "context_length_exceeded", "{path}");
        assert_eq!(refused.error("n_ctx"), 5);
        let longer = ask(path, 100_000.into());
        assert_eq!(longer.status, 200, "{path}: {}", longer.text());
        assert!(longer.json()["warnings"].to_string().contains("1024"), "{}", longer.text());
        assert_eq!(ask(path, 0.into()).error("param"), "options.num_ctx");
    }
    let body = with(story(1), json!({"options": {"temperature": 1}}));
    assert_eq!(post(shared(), CHAT, &body).error("param"), "options.temperature");
}

#[test]
fn tokens_come_and_go() {
    let at = shared();
    let tokens = post(at, "/tokenize", &json!({"content": "Hello fox"})).json();
    assert_eq!(tokens["count"], 2);
    assert_eq!(post(at, "/tokenize", &json!({"prompt": "Hello fox"})).json()["count"], 3);
    let text = post(at, "/detokenize", &json!({"tokens": tokens["tokens"]})).json();
    assert_eq!(text["content"], "Hello fox");
    assert_eq!(post(at, "/detokenize", &json!({"tokens": [99_999_999]})).status, 400);
    let chat = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let n = post(at, "/tokenize", &chat).json()["count"].clone();
    assert_eq!(
        post(at, CHAT, &with(chat.clone(), json!({"max_tokens": 1}))).json()["usage"]["prompt_tokens"],
        n
    );
    // What would change the tokens is obeyed, or refused.
    let think = json!({"chat_template_kwargs": {"enable_thinking": true}});
    assert_ne!(post(at, "/tokenize", &with(chat.clone(), think)).json()["count"], n);
    let both = json!({"content": "Hello fox", "return_token_strs": true, "parse_special": false});
    let both = post(at, "/tokenize", &both).json();
    assert_eq!(
        (&both["tokens"], &both["token_strs"]),
        (&tokens["tokens"], &json!(["Hello", " fox"]))
    );
    // The words of lm-eval, which asks for tokens and sends them back.
    let info = get(at, "/tokenizer_info").json();
    let bare = |text: &Value| json!({"prompt": text, "add_special_tokens": false});
    for special in [&info["bos_token"], &info["eos_token"]] {
        assert_eq!(post(at, "/tokenize", &bare(special)).json()["count"], 1, "{info}");
        let spelled = json!({"content": special});
        assert!(post(at, "/tokenize", &spelled).json()["count"].as_u64().unwrap() > 1);
        let parsed = with(spelled, json!({"parse_special": true}));
        assert_eq!(post(at, "/tokenize", &parsed).json()["count"], 1);
    }
    for (name, value) in [
        ("continue_final_message", json!(true)),
        ("add_generation_prompt", json!(false)),
        ("chat_template", json!("{{ x }}")),
    ] {
        let mut body = chat.clone();
        body[name] = value;
        assert_eq!(post(at, "/tokenize", &body).error("param"), name);
    }
    let own = with(chat.clone(), json!({"chat_template": "x"}));
    assert_eq!(post(at, "/apply-template", &own).error("param"), "chat_template");
    let prompt = post(at, "/apply-template", &chat).json()["prompt"].as_str().unwrap().to_string();
    assert!(prompt.contains("Hi") && prompt.contains("<|turn>user"), "{prompt}");
    let thinking = with(chat, json!({"chat_template_kwargs": {"enable_thinking": true}}));
    assert!(
        post(at, "/apply-template", &thinking).json()["prompt"]
            .as_str()
            .unwrap()
            .contains("<|think|>")
    );
}

#[test]
fn what_is_said_of_the_server_is_so() {
    let at = shared();
    let api = get(at, "/openapi.json").json();
    assert!(api["openapi"].as_str().unwrap().starts_with("3."));
    assert!(api["paths"][CHAT]["post"]["requestBody"].is_object(), "{api}");
    assert!(api["components"]["schemas"]["ChatRequest"]["properties"]["messages"].is_object());
    let props = get(at, "/props").json();
    assert_eq!(props["n_ctx"], 1024);
    assert_eq!(props["modalities"]["vision"], true);
    assert_eq!(props["limits"]["queue"], 64);
    assert_eq!(get(at, "/props?model=nothing").status, 404);
    // What was never counted is not listed.
    assert_eq!(post(at, CHAT, &story(3)).status, 200);
    let metrics = get(at, "/metrics").text();
    for stem in [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "prompt_tokens",
        "generation_tokens",
        "prefix_cache_hits",
        "prefix_cache_queries",
        "num_preemptions",
        "request_success",
    ] {
        assert!(metrics.contains(&format!("# TYPE lapidary:{stem} ")), "{stem}: {metrics}");
    }
    assert_eq!(get(at, "/nothing").error("code"), "not_found");
    let wrong = exchange(at, &request("DELETE", CHAT, &[], b""));
    assert_eq!((wrong.status, wrong.error("code")), (405, "method_not_allowed".into()));
}
