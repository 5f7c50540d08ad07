//! Rows R11 to R13: what answers are held to.

use lapidary_mock_engine::Mock;
use serde_json::{Value, json};

use crate::client::post;
use crate::{CHAT, config, mock_source, said, shared, start, story, weather, with};

fn held(schema: &Value) -> crate::client::Reply {
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}});
    let body = json!({
        "messages": [{"role": "user", "content": "Tell me about a fox."}],
        "temperature": 0, "max_tokens": 200, "response_format": format,
    });
    post(shared(), CHAT, &body)
}

#[test]
fn r11_an_answer_is_what_its_schema_says() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "legs": {"type": "integer", "minimum": 0, "maximum": 9},
            "tame": {"type": "boolean"},
        },
        "required": ["name", "legs", "tame"],
        "additionalProperties": false,
    });
    let reply = held(&schema);
    let made: Value = serde_json::from_str(&said(&reply)).unwrap();
    assert!(made["name"].as_str().unwrap().chars().count() <= 8, "{made}");
    assert!(made["legs"].as_u64().unwrap() <= 9 && made["tame"].is_boolean(), "{made}");
    assert_eq!(made.as_object().unwrap().len(), 3);
    // An object that the model ends in time is one.
    let object = |seed: u64| {
        let format = json!({"type": "json_object"});
        let body =
            with(story(200), json!({"response_format": format, "temperature": 1, "seed": seed}));
        let reply = post(shared(), CHAT, &body);
        let text = said(&reply);
        assert!(text.trim_start().starts_with('{'), "{text}");
        let is_whole = reply.json()["choices"][0]["finish_reason"] == "stop";
        is_whole.then(|| serde_json::from_str::<Value>(&text).unwrap().is_object())
    };
    let whole: Vec<bool> = (0..12).filter_map(object).collect();
    assert!(!whole.is_empty() && whole.iter().all(|is_object| *is_object), "{whole:?}");
    let mut node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}});
    node["additionalProperties"] = false.into();
    let recursive = held(&json!({"$ref": "#/$defs/node", "$defs": {"node": node}}));
    assert_eq!(recursive.status, 200, "{}", recursive.text());
}

#[test]
fn r11_what_no_answer_can_be_held_to_is_refused() {
    let refused = [
        json!("x"),
        json!(5),
        json!({"type": "object", "properties": {"a": {"type": "nothing"}}}),
        json!({"type": "string", "pattern": "(a|b"}),
        json!({"type": "string", "pattern": "x".repeat(300_000)}),
        json!({"$ref": "#/nowhere"}),
        json!({"$ref": "http://example.com/schema.json"}),
        json!({"type": "integer", "minimum": 5, "maximum": 1}),
        json!({"type": "array", "uniqueItems": true, "items": {"type": "integer"}}),
        json!({"not": {"type": "string"}}),
    ];
    for schema in refused {
        let reply = held(&schema);
        let shown: String = schema.to_string().chars().take(100).collect();
        assert_eq!(reply.status, 400, "{shown}: {}", reply.text());
    }
    let named = held(&json!({"not": {"type": "string"}})).error("message");
    assert!(named.as_str().unwrap().contains("not"), "{named}");
    // A pattern that takes exponential time elsewhere.
    let slow = held(&json!({"type": "string", "pattern": "^(a+)+$", "maxLength": 20}));
    assert!(matches!(slow.status, 200 | 400), "{}", slow.text());
    let wrong = with(story(1), json!({"response_format": {"type": "xml"}}));
    assert_eq!(post(shared(), CHAT, &wrong).error("param"), "response_format.type");
    let missing = json!({"type": "json_schema", "json_schema": {"name": "x"}});
    let wrong = with(story(1), json!({"response_format": missing}));
    assert_eq!(post(shared(), CHAT, &wrong).status, 400);
    assert!(!said(&post(shared(), CHAT, &story(5))).is_empty());
}

fn with_tools(tools: Value) -> crate::client::Reply {
    post(shared(), CHAT, &with(story(3), json!({"tools": tools})))
}

#[test]
fn r12_tools_that_make_no_sense_are_refused() {
    let many: Vec<Value> = (0..10_000)
        .map(|i| json!({"type": "function", "function": {"name": format!("f{i}")}}))
        .collect();
    assert_eq!(with_tools(many.into()).error("param"), "tools");
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let twice = with_tools(json!([named("f"), named("f")]));
    assert_eq!(twice.error("param"), "tools[1].function.name");
    for name in ["", "a b", "<|tool>", &"x".repeat(200)] {
        assert_eq!(with_tools(json!([named(name)])).status, 400, "{name}");
    }
    assert_eq!(with_tools(json!([{"function": {"name": "f"}}])).error("param"), "tools[0].type");
    assert_eq!(with_tools(json!([{"type": "function"}])).error("param"), "tools[0].function");
    let schema = json!([{"type": "function", "function": {"name": "f", "parameters": "x"}}]);
    assert_eq!(with_tools(schema).error("param"), "tools[0].function.parameters");
    let bad = json!({"type": "object", "properties": {"a": {"type": "nothing"}}});
    let strict = json!({"name": "f", "parameters": bad, "strict": true});
    let strict = with_tools(json!([{"type": "function", "function": strict}]));
    assert_eq!(strict.status, 400, "{}", strict.text());
    let none = with(story(1), json!({"tool_choice": "required"}));
    assert_eq!(post(shared(), CHAT, &none).error("param"), "tool_choice");
    for choice in [json!("maybe"), json!({"type": "function", "function": {"name": "g"}}), json!(1)]
    {
        let body = with(story(1), json!({"tools": [weather()], "tool_choice": choice}));
        assert_eq!(post(shared(), CHAT, &body).error("param"), "tool_choice", "{choice}");
    }
    // Tools of kinds that nobody here knows are left out, and that is said.
    let other = with_tools(json!([{"type": "web_search"}, {"type": "custom", "name": "x"}]));
    assert_eq!(other.status, 200, "{}", other.text());
    assert_eq!(other.json()["warnings"].as_array().unwrap().len(), 2);
}

#[test]
fn r12_a_tool_that_must_be_called_is_called_as_it_is_declared() {
    let level = json!({"type": "integer", "minimum": 1, "maximum": 3});
    let tool = json!({"type": "function", "function": {
        "name": "set_level",
        "parameters": {
            "type": "object",
            "properties": {"level": level, "unit": {"enum": ["low", "high"]}},
            "required": ["level", "unit"],
            "additionalProperties": false,
        },
    }});
    let named = json!({"type": "function", "function": {"name": "set_level"}});
    for choice in [json!("required"), named] {
        for seed in 0..4 {
            let body = json!({
                "messages": [{"role": "user", "content": "Tell me a story about a brave fox."}],
                "temperature": 1.5, "seed": seed, "max_tokens": 200,
                "tools": if choice == "required" { json!([tool]) } else { json!([weather(), tool]) },
                "tool_choice": choice,
            });
            let reply = post(shared(), CHAT, &body);
            let choice = reply.json()["choices"][0].clone();
            assert_eq!(choice["finish_reason"], "tool_calls", "{}", reply.text());
            for call in choice["message"]["tool_calls"].as_array().unwrap() {
                assert_eq!(call["function"]["name"], "set_level");
                let arguments = call["function"]["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                assert!((1..=3).contains(&arguments["level"].as_i64().unwrap()), "{arguments}");
                assert!(["low", "high"].contains(&arguments["unit"].as_str().unwrap()));
            }
            // Streamed, it is the same call.
            let events = post(shared(), CHAT, &with(body, json!({"stream": true}))).events();
            let delta = |e: &Value| {
                let call = &e["choices"][0]["delta"]["tool_calls"][0];
                let text = call["function"]["arguments"].as_str().unwrap_or_default().to_string();
                (call["index"] == 0).then_some(text)
            };
            let grown: String = events.iter().filter_map(delta).collect();
            let whole = &choice["message"]["tool_calls"][0]["function"]["arguments"];
            let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(value(&grown), value(whole.as_str().unwrap()));
        }
    }
    let none = json!({"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "temperature": 0, "max_tokens": 30, "tools": [weather()], "tool_choice": "none"});
    let reply = post(shared(), CHAT, &none);
    assert!(reply.json()["choices"][0]["message"].get("tool_calls").is_none(), "{}", reply.text());
}

const TOKENIZER: &str = include_str!("../../../text/tests/data/tokenizer.json");

fn templated(template: &'static str) -> crate::Running {
    let mock = Mock {
        vocab_size: 396,
        tokenizer: Some(TOKENIZER),
        template: Some(template),
        ..Mock::default()
    };
    start(&config(), vec![mock_source("mock", &mock.sized(64, 8, 8))])
}

#[test]
fn r13_templates_are_bounded_and_reach_nothing() {
    for template in [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}x",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{{ range(100000000) | list | length }}",
        "{{ messages.__class__.__mro__ }}{{ raise_exception('no') }}",
    ] {
        let server = templated(template);
        let reply = post(server.at, CHAT, &story(2));
        assert_eq!(reply.status, 400, "{template}: {}", reply.text());
        assert!(reply.error("message").as_str().unwrap().contains("template"), "{}", reply.text());
    }
    // What is reserved can't be given, and templates can't come with a request.
    let kwargs = json!({"chat_template_kwargs": {"messages": []}});
    assert_eq!(
        post(shared(), CHAT, &with(story(1), kwargs)).error("param"),
        "chat_template_kwargs"
    );
    let own = json!({"chat_template": "{{ 1 }}"});
    assert_eq!(post(shared(), CHAT, &with(story(1), own)).error("param"), "chat_template");
    let fine = json!({"chat_template_kwargs": {"enable_thinking": false, "other": 1}});
    assert_eq!(post(shared(), CHAT, &with(story(1), fine)).status, 200);
}

#[test]
fn messages_that_stand_together_are_one_where_the_template_wants_turns() {
    let server = templated(
        "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}\
         {% for m in rest %}\
         {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}\
         {{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}\
         {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %};{% endfor %}",
    );
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let ask =
        |messages: Value| post(server.at, CHAT, &json!({"messages": messages, "max_tokens": 1}));
    let apart = ask(json!([say("system", "s"), say("user", "a"), say("user", "b")]));
    assert_eq!(apart.status, 200, "{}", apart.text());
    let joined = ask(json!([say("system", "s"), say("user", "a\n\nb")]));
    let tokens = |reply: &crate::client::Reply| reply.json()["usage"]["prompt_tokens"].clone();
    let shown = |messages: Value| {
        let body = json!({"messages": messages, "with_pieces": true});
        post(server.at, "/tokenize", &body).json()["tokens"].to_string()
    };
    let given = json!([say("system", "s"), say("user", "a"), say("user", "b")]);
    assert_eq!(tokens(&apart), tokens(&joined), "{}", shown(given));
    let begin = [say("user", "a"), say("assistant", "x")];
    let [a, x] = &begin;
    let late = ask(json!([a, x, say("system", "b"), say("user", "c")]));
    assert_eq!(late.status, 200, "{}", late.text());
    assert_eq!(tokens(&late), tokens(&ask(json!([a, x, say("user", "b\n\nc")]))));
    // What no turns can help is refused.
    assert_eq!(ask(json!([say("assistant", "a")])).status, 400);
}
