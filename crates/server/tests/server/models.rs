//! Several models: loaded when asked for, unloaded when there is no room.

use lapidary_server::service::{Bytes, KeepAlive};
use lapidary_server::{Config, Source};
use serde_json::{Value, json};

use crate::client::{Open, get, post};
use crate::{CHAT, Running, config, load, pebble, said, source, start, story, until, with};

fn state(server: &Running, name: &str) -> Value {
    get(server.at, &format!("/v1/models/{name}")).json()["lapidary"]["state"].clone()
}

fn ask(server: &Running, name: &str, more: Value) -> crate::client::Reply {
    post(server.at, CHAT, &with(with(story(5), json!({"model": name})), more))
}

/// Room for one of them.
fn budget() -> Bytes {
    Bytes(load().plan(&pebble()).unwrap().memory.total() * 3 / 2)
}

#[test]
fn a_model_that_nobody_uses_makes_room() {
    let config = Config { memory: Some(budget()), lazy: true, ..config() };
    let server = start(&config, vec![source("one"), source("two")]);
    assert_eq!(
        (state(&server, "one"), state(&server, "two")),
        ("unloaded".into(), "unloaded".into())
    );
    let first = said(&ask(&server, "one", json!({})));
    assert_eq!(
        (state(&server, "one"), state(&server, "two")),
        ("loaded".into(), "unloaded".into())
    );
    assert_eq!(said(&ask(&server, "two", json!({}))), first);
    assert_eq!(
        (state(&server, "one"), state(&server, "two")),
        ("unloaded".into(), "loaded".into())
    );
    // One that answers stays.
    let body = with(story(900), json!({"model": "two", "stream": true, "ignore_eos": true}));
    let mut stream = Open::post(server.at, CHAT, &body);
    assert!(stream.line("data: ").is_some());
    let reply = ask(&server, "one", json!({}));
    assert_eq!(
        (reply.status, reply.error("code")),
        (503, "out_of_memory".into()),
        "{}",
        reply.text()
    );
    assert!(reply.header("retry-after").is_some());
    assert!(reply.error("message").as_str().unwrap().contains("`one` does not fit"));
    assert!(stream.line("data: [DONE]").is_some());
    drop(stream);
    until("it is used no more", || ask(&server, "one", json!({})).status == 200);
}

#[test]
fn a_model_that_does_not_fit_is_503_and_others_go_on() {
    let large = load().sequences(200).context(2048);
    let need = large.plan(&pebble()).unwrap().memory.total();
    let config = Config { memory: Some(Bytes(need / 2)), ..config() };
    let sources = vec![source("small"), Source::new("large", pebble(), large)];
    let server = start(&config, sources);
    assert_eq!(ask(&server, "small", json!({})).status, 200);
    let reply = ask(&server, "large", json!({}));
    assert_eq!((reply.status, reply.error("code")), (503, "out_of_memory".into()));
    assert_eq!(ask(&server, "small", json!({})).status, 200);
    let shown = get(server.at, "/v1/models/large").json()["lapidary"]["error"].clone();
    assert!(shown.as_str().unwrap().contains("does not fit"), "{shown}");
}

#[test]
fn a_model_is_unloaded_after_a_while() {
    let keep = KeepAlive::For(std::time::Duration::ZERO);
    let server =
        start(&Config { keep_alive: Some(keep), lazy: true, ..config() }, vec![source("one")]);
    let first = said(&ask(&server, "one", json!({})));
    until("it is unloaded", || state(&server, "one") == "unloaded");
    assert_eq!(get(server.at, "/ready").status, 200);
    assert_eq!(said(&ask(&server, "one", json!({}))), first);
}

#[test]
fn a_model_that_can_not_be_loaded_is_said_so_and_tried_again() {
    let mut broken = source("broken");
    let is_broken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let flag = is_broken.clone();
    broken.make = Box::new(move || match flag.load(std::sync::atomic::Ordering::Relaxed) {
        true => Err(lapidary::Error::Argument("a secret path".into())),
        false => pebble().load(load()),
    });
    let server = start(&config(), vec![broken]);
    let reply = ask(&server, "broken", json!({}));
    assert!(reply.status >= 400, "{}", reply.text());
    until("it is not ready", || get(server.at, "/ready").json()["status"] == "failed");
    is_broken.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(ask(&server, "broken", json!({})).status, 200);
    assert_eq!(get(server.at, "/ready").status, 200);
}

#[test]
fn a_name_with_a_slash_is_found_as_it_is_and_encoded() {
    let server = start(&Config { lazy: true, ..config() }, vec![source("google/gemma:q4_0")]);
    for path in ["google/gemma:q4_0", "google%2Fgemma%3Aq4_0"] {
        let found = get(server.at, &format!("/v1/models/{path}"));
        assert_eq!(found.json()["id"], "google/gemma:q4_0", "{path}: {}", found.text());
    }
    assert_eq!(get(server.at, "/v1/models/google/other").error("code"), "model_not_found");
    assert_eq!(get(server.at, "/v1/models/a/b/c").status, 404);
}

#[test]
fn models_are_objects_that_both_vendors_clients_take() {
    let server = start(&config(), vec![source("one"), source("two")]);
    let list = get(server.at, "/v1/models").json();
    assert_eq!((&list["object"], &list["has_more"]), (&"list".into(), &false.into()));
    assert_eq!((&list["first_id"], &list["last_id"]), (&"one".into(), &"two".into()));
    for model in list["data"].as_array().unwrap() {
        assert_eq!((&model["object"], &model["type"]), (&"model".into(), &"model".into()));
        assert!(model["created"].is_u64() && model["owned_by"].is_string());
        assert!(model["created_at"].as_str().unwrap().ends_with('Z'));
        assert_eq!(
            (&model["display_name"], &model["lifecycle"]),
            (&"pebble".into(), &"active".into())
        );
        assert_eq!(
            (&model["context_length"], &model["max_model_len"]),
            (&1024.into(), &1024.into())
        );
        let path = format!("/v1/models/{}", model["id"].as_str().unwrap());
        assert_eq!(get(server.at, &path).json()["id"], model["id"]);
    }
    assert_eq!(get(server.at, "/v1/models/three").error("code"), "model_not_found");
    // Ollama's clients add a tag.
    assert_eq!(ask(&server, "two:latest", json!({})).status, 200);
    let names = |sources| lapidary_server::App::new(&config(), sources, log()).err();
    assert!(names(vec![source("a"), source("a")]).unwrap().contains("two models are called `a`"));
    assert!(names(vec![]).is_some());
    assert_eq!(Source::name_of("/models/gemma-3-1b-it.gguf"), "gemma-3-1b-it");
    assert_eq!(Source::name_of("pebble"), "pebble");
}

fn log() -> lapidary_server::Log {
    lapidary_server::Log::to(lapidary_server::LogFormat::Json, false, Box::new(std::io::sink()))
}
