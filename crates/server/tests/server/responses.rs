//! `/v1/responses`, as strict clients read it.

use lapidary_server::Config;
use serde_json::{Value, json};

use crate::client::{exchange, get, post, post_as, request};
use crate::{config, shared, source, start, weather, with};

const PATH: &str = "/v1/responses";

fn tool() -> Value {
    let mut tool = weather()["function"].clone();
    tool["type"] = "function".into();
    tool
}

fn ask(input: Value) -> Value {
    json!({"input": input, "temperature": 0, "max_output_tokens": 60})
}

fn text(response: &Value) -> String {
    let said = response["output"].as_array().unwrap().iter().find(|i| i["type"] == "message");
    said.unwrap()["content"][0]["text"].as_str().unwrap().to_string()
}

#[test]
fn a_response_has_every_field() {
    let reply = post(shared(), PATH, &ask("Tell me a story about a brave fox.".into())).json();
    let fields = [
        "id",
        "object",
        "created_at",
        "status",
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "model",
        "output",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
        "truncation",
        "usage",
        "metadata",
    ];
    for field in fields {
        assert!(reply.get(field).is_some(), "{field}");
    }
    assert_eq!((&reply["object"], &reply["status"]), (&"response".into(), &"incomplete".into()));
    assert_eq!(reply["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(reply["usage"]["output_tokens"], 60);
    for part in [
        "/usage/input_tokens_details/cached_tokens",
        "/usage/output_tokens_details/reasoning_tokens",
    ] {
        assert!(reply.pointer(part).unwrap().is_u64(), "{part}");
    }
    // What the model's makers recommend, where nobody asked for anything else.
    assert_eq!((&reply["temperature"], &reply["top_p"]), (&json!(0.0), &json!(0.95)));
    let short = post(shared(), PATH, &ask("Hi".into())).json();
    assert_eq!(short["status"], "completed");
    assert_eq!(short["incomplete_details"], Value::Null);
}

#[test]
fn events_have_every_field_and_say_what_the_whole_says() {
    let cases = [
        ask("Tell me a story about a brave fox.".into()),
        with(ask("What is the weather in Paris?".into()), json!({"tools": [tool()]})),
        with(ask("What is 2 + 2?".into()), json!({"reasoning": {"effort": "low"}})),
    ];
    for body in cases {
        let whole = post(shared(), PATH, &body).json();
        let reply = post(shared(), PATH, &with(body, json!({"stream": true})));
        let events = reply.events();
        for (i, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], i, "{event}");
            let kind = event["type"].as_str().unwrap();
            assert!(reply.text().contains(&format!("event: {kind}\n")));
            let needed: &[&str] = match kind {
                "response.created"
                | "response.in_progress"
                | "response.completed"
                | "response.incomplete" => &["response"],
                "response.output_item.added" | "response.output_item.done" => {
                    &["output_index", "item"]
                }
                "response.content_part.added" | "response.content_part.done" => {
                    &["output_index", "item_id", "content_index", "part"]
                }
                "response.output_text.delta" | "response.reasoning_text.delta" => {
                    &["output_index", "item_id", "content_index", "delta"]
                }
                "response.output_text.done" | "response.reasoning_text.done" => {
                    &["output_index", "item_id", "content_index", "text"]
                }
                "response.function_call_arguments.delta" => &["output_index", "item_id", "delta"],
                "response.function_call_arguments.done" => {
                    &["output_index", "item_id", "arguments", "name"]
                }
                other => panic!("{other}"),
            };
            for field in needed {
                assert!(!event[field].is_null(), "{field} of {event}");
            }
        }
        assert_eq!(events[0]["response"]["status"], "in_progress");
        let last = &events[events.len() - 1]["response"];
        assert_eq!(last["status"], whole["status"]);
        let plain = |response: &Value| -> Vec<Value> {
            let mut items = response["output"].as_array().unwrap().clone();
            items.iter_mut().for_each(|item| {
                item["id"] = Value::Null;
                if item.get("call_id").is_some() {
                    item["call_id"] = Value::Null;
                }
            });
            items
        };
        assert_eq!(plain(last), plain(&whole));
    }
}

#[test]
fn a_response_goes_on_from_another_of_the_same_key() {
    let config = Config { api_key: vec!["one".into(), "two".into()], ..config() };
    let server = start(&config, vec![source("pebble")]);
    let send = |key: &str, body: &Value| post_as(server.at, PATH, key, body);
    let body = with(ask("What is the weather in Paris?".into()), json!({"tools": [tool()]}));
    let first = send("one", &body).json();
    let call = &first["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&"function_call".into(), &"get_weather".into()));
    let output =
        json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}]);
    let next =
        with(ask(output.clone()), json!({"previous_response_id": first["id"], "tools": [tool()]}));
    let second = send("one", &next).json();
    assert!(text(&second).contains("sunny"), "{second}");
    // The same without state.
    let user = json!({"role": "user", "content": "What is the weather in Paris?"});
    let all = json!([user, call, output[0]]);
    assert_eq!(
        text(&send("one", &with(ask(all), json!({"tools": [tool()]}))).json()),
        text(&second)
    );
    // Another key knows nothing of it.
    let other = send("two", &next);
    assert_eq!(other.error("param"), "previous_response_id");
    assert_eq!(other.status, 404);
    let path = format!("{PATH}/{}", second["id"].as_str().unwrap());
    let with_key = |method: &str, path: &str, key: &str| {
        exchange(server.at, &request(method, path, &[("x-api-key", key)], b""))
    };
    assert_eq!(with_key("GET", &path, "one").json(), second);
    assert_eq!(with_key("GET", &path, "two").status, 404);
    let items = with_key("GET", &format!("{path}/input_items"), "one").json();
    assert_eq!(items["data"][0]["type"], "function_call_output");
    let streamed = with_key("GET", &format!("{path}?stream=true"), "one");
    assert_eq!((streamed.status, streamed.error("param")), (400, "stream".into()));
    assert_eq!(with_key("DELETE", &path, "two").status, 404);
    assert_eq!(with_key("DELETE", &path, "one").json()["deleted"], true);
    assert_eq!(with_key("GET", &path, "one").status, 404);
    // What shall not be kept is not.
    let unkept = send("one", &with(ask("Hi".into()), json!({"store": false}))).json();
    assert_eq!(
        with_key("GET", &format!("{PATH}/{}", unkept["id"].as_str().unwrap()), "one").status,
        404
    );
}

/// As the AI SDK writes what it was answered: by its ids.
#[test]
fn items_come_in_pages() {
    let say = |text: &str| json!({"role": "user", "content": text});
    let asked = ask(json!([say("a"), say("b"), say("c")]));
    let id = post(shared(), PATH, &asked).json()["id"].as_str().unwrap().to_string();
    let page = |how: &str| get(shared(), &format!("{PATH}/{id}/input_items{how}"));
    let texts = |how: &str| {
        let page = page(how).json();
        let text = |item: &Value| item["content"][0]["text"].as_str().unwrap().to_string();
        let all = page["data"].as_array().unwrap().iter().map(text).collect::<String>();
        (all, page["has_more"].as_bool().unwrap())
    };
    assert_eq!(texts(""), ("cba".into(), false));
    assert_eq!(texts("?order=asc&limit=2"), ("ab".into(), true));
    let last = page("?order=asc&limit=2").json()["last_id"].as_str().unwrap().to_string();
    assert_eq!(texts(&format!("?order=asc&limit=2&after={last}")), ("c".into(), false));
    for (how, param) in [("limit=0", "limit"), ("order=up", "order"), ("after=x", "after")] {
        assert_eq!(page(&format!("?{how}")).error("param"), param);
    }
}

#[test]
fn items_are_referred_to_by_their_ids() {
    let config = Config { api_key: vec!["one".into(), "two".into()], ..config() };
    let server = start(&config, vec![source("pebble")]);
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    let with_tool = |input: Value| with(ask(input), json!({"tools": [tool()]}));
    let called = post_as(server.at, PATH, "one", &with_tool(json!([question]))).json();
    let call = called["output"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(call["type"], "function_call", "{called}");
    let result = json!({"type": "function_call_output", "call_id": call["call_id"],
        "output": "sunny, 20 degrees"});
    let whole = json!([question, call, result]);
    let named = json!([question, {"type": "item_reference", "id": call["id"]}, result]);
    let whole = post_as(server.at, PATH, "one", &with_tool(whole)).json();
    let by_name = post_as(server.at, PATH, "one", &with_tool(named.clone())).json();
    assert_eq!(text(&by_name), text(&whole));
    assert_eq!(by_name["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    // Nobody else's, and none that was not kept.
    let other = post_as(server.at, PATH, "two", &with_tool(named));
    assert_eq!((other.status, other.error("param")), (404, "input[1].id".into()));
    let unkept = with(with_tool(json!([question])), json!({"store": false}));
    let unkept = post_as(server.at, PATH, "one", &unkept).json();
    let id = unkept["output"].as_array().unwrap().last().unwrap()["id"].clone();
    let named = json!([question, {"type": "item_reference", "id": id}, result]);
    assert_eq!(post_as(server.at, PATH, "one", &with_tool(named)).status, 404);
}

/// What Codex sends with every request.
#[test]
fn coding_agents_are_understood() {
    let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]});
    let reasoned = json!({"type": "reasoning", "id": "rs_1", "content": null, "encrypted_content": null,
        "summary": [{"type": "summary_text", "text": "hm"}]});
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "get_weather",
        "arguments": "{\"city\":\"Paris\"}", "status": null});
    let output = json!({"type": "function_call_output", "call_id": "c",
        "output": [{"type": "input_text", "text": "sunny, 20 degrees"}]});
    let mut function = tool();
    function["strict"] = false.into();
    let body = with(
        ask(json!([
            message("developer", "Be brief."),
            message("user", "<environment_context>"),
            message("user", "What is the weather in Paris?"),
            reasoned,
            call,
            output
        ])),
        json!({"instructions": "You are a coding agent.", "store": false, "tool_choice": "auto",
            "parallel_tool_calls": false, "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": null},
            "prompt_cache_key": "x", "client_metadata": {"session": "x"}, "service_tier": null,
            "tools": [function, {"type": "web_search", "external_web_access": false},
                {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
                {"type": "local_shell"}, {"type": "namespace", "name": "x", "tools": []}]}),
    );
    let reply = post(shared(), PATH, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let warnings = reply.json()["warnings"].as_array().unwrap().len();
    assert_eq!(warnings, 4, "{}", reply.text());
    let events = post(shared(), PATH, &with(body, json!({"stream": true}))).events();
    assert!(events.last().unwrap()["type"].as_str().unwrap().starts_with("response."));
    assert_eq!(
        events.last().unwrap()["response"]["output"][0]["type"],
        reply.json()["output"][0]["type"]
    );
}

#[test]
fn items_of_other_servers_are_read_or_left_out_with_a_warning() {
    let user = |text: &str| json!({"role": "user", "content": text});
    let searched = json!({"type": "web_search_call", "id": "ws_1", "status": "completed"});
    let custom = json!({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch",
        "input": "*** Begin Patch"});
    let output = json!({"type": "custom_tool_call_output", "call_id": "c", "output": "done"});
    let input = json!([user("Hi"), searched, custom, output, user("Hello!")]);
    let reply = post(shared(), PATH, &with(ask(input), json!({"store": false})));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.json()["warnings"].to_string().contains("input[1]"), "{}", reply.text());
    // Tools of OpenAI's own models, in the words of each.
    let shell = json!({"type": "local_shell_call", "id": "lsh_1", "call_id": "a",
        "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}});
    let listed = json!({"type": "local_shell_call_output", "id": "lsh_1", "output": "{}"});
    let shells = json!({"type": "shell_call", "call_id": "b", "action": {"commands": ["ls"]}});
    let outcome =
        json!([{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]);
    let seen = json!({"type": "shell_call_output", "call_id": "b", "output": outcome});
    let patch = json!({"type": "apply_patch_call", "call_id": "c", "status": "completed",
        "operation": {"type": "delete_file", "path": "x"}});
    let patched = json!({"type": "apply_patch_call_output", "call_id": "c", "status": "completed"});
    let called = json!([user("Hi"), shell, listed, shells, seen, patch, patched, user("Hello!")]);
    let reply = post(shared(), PATH, &with(ask(called), json!({"store": false})));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let unanswered = json!([user("Hi"), patch, user("Hello!")]);
    assert_eq!(post(shared(), PATH, &ask(unanswered)).error("param"), "input[1]");
    let lost =
        json!([user("Hi"), {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}]);
    assert_eq!(post(shared(), PATH, &ask(lost)).error("param"), "input[1]");
}

/// Some agents declare tools when they need them.
#[test]
fn tools_may_be_declared_between_items() {
    let declared = json!({"type": "additional_tools", "role": "developer", "tools": [tool()]});
    let input = json!([declared, {"role": "user", "content": "What is the weather in Paris?"}]);
    let reply = post(shared(), PATH, &ask(input.clone()));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["output"][0]["name"], "get_weather", "{}", reply.text());
    // One that is known already is not declared twice.
    let twice = with(
        ask(input),
        json!({"tools": [tool()], "context_management": [
        {"type": "compaction", "compact_threshold": 1000}]}),
    );
    let again = post(shared(), PATH, &twice).json();
    assert_eq!(again["output"][0]["arguments"], reply.json()["output"][0]["arguments"]);
    assert!(again["warnings"].to_string().contains("context_management"), "{again}");
}

#[test]
fn instructions_are_those_of_one_request() {
    let body = with(ask("Hi".into()), json!({"instructions": "You are a fox."}));
    let first = post(shared(), PATH, &body).json();
    let go_on = with(ask("And now?".into()), json!({"previous_response_id": first["id"]}));
    let count = |body: &Value| {
        post(shared(), "/v1/responses/input_tokens", body).json()["input_tokens"].as_u64().unwrap()
    };
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let plain =
        json!([say("user", "Hi"), say("assistant", &text(&first)), say("user", "And now?")]);
    assert_eq!(count(&go_on), count(&ask(plain)));
    let again = with(go_on.clone(), json!({"instructions": "You are a fox."}));
    assert!(count(&again) > count(&go_on));
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let refused = [
        ("background", json!(true)),
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "x"})),
        ("truncation", json!("auto")),
        ("unknown_field", json!(1)),
        ("temperature", json!(3)),
        ("max_output_tokens", json!(0)),
        ("top_logprobs", json!(21)),
    ];
    for (param, value) in refused {
        let mut body = ask("Hi".into());
        body[param] = value;
        let reply = post(shared(), PATH, &body);
        assert_eq!((reply.status, reply.error("param")), (400, param.into()), "{}", reply.text());
    }
    let items = [
        (json!([{"type": "compaction", "encrypted_content": "x"}]), "input[0].type"),
        (json!([{"type": "local_shell_call", "id": "x"}]), "input[0].action"),
        (json!([{"role": "king", "content": "x"}]), "input[0].role"),
        (json!([{"role": "user", "content": 5}]), "input[0].content"),
        (
            json!([{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{"}]),
            "input[0].arguments",
        ),
        (json!([5]), "input[0]"),
        (json!(5), "input"),
    ];
    for (input, param) in items {
        let reply = post(shared(), PATH, &ask(input));
        assert_eq!((reply.status, reply.error("param")), (400, param.into()), "{}", reply.text());
    }
    let lost = ask(json!([{"type": "function_call_output", "call_id": "a", "output": "x"}]));
    assert_eq!(post(shared(), PATH, &lost).status, 400);
    let format = json!({"format": {"type": "json_schema", "name": "x", "schema": {"type": "object",
        "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}}});
    let held = post(shared(), PATH, &with(ask("Hi".into()), json!({"text": format}))).json();
    let made: Value = serde_json::from_str(&text(&held)).unwrap();
    assert!(made["a"].is_boolean());
    assert_eq!(get(shared(), "/v1/responses/nothing").status, 404);
}
