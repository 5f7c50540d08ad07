//! Rows C1 to C8 and C11: many requests, and their ends.

use std::io::Write;
use std::net::TcpStream;

use lapidary_mock_engine::{Fault, Mock};
use lapidary_server::{Config, Log, LogFormat, Outcome, Server};
use serde_json::{Value, json};

use crate::client::{Open, connect, get, post, post_as, read, request};
use crate::{
    CHAT, Running, config, hold, load, mock_source, pebble, said, shared, source, start,
    start_logging, story, streamed, until, with,
};

fn endless() -> Value {
    with(story(900), json!({"ignore_eos": true}))
}

/// One sequence, and so many that wait.
fn narrow(queue: usize, change: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config { parallel: 1, ..config() };
    config.limits.queue = queue;
    change(&mut config);
    let load = load().sequences(1).queue(queue);
    start(&config, vec![lapidary_server::Source::new("pebble", pebble(), load)])
}

fn send(server: &Running, body: &Value) -> TcpStream {
    let mut stream = connect(server.at);
    stream.write_all(&request("POST", CHAT, &[], body.to_string().as_bytes())).unwrap();
    stream
}

#[test]
fn c1_whoever_leaves_is_not_worked_for() {
    let server = narrow(4, |_| {});
    let engine = server.engine("pebble");
    let mut n = 0;
    let mut gone = |what: &str| {
        n += 1;
        until(what, || engine.metrics().cancelled == n && engine.metrics().open == 0);
        until("its pages are free", || {
            engine.with_runner(|_| ()).unwrap();
            engine.metrics().pages_in_use == 0
        });
    };
    // While it waits: it is never begun.
    let held = hold(&engine);
    let stream = send(&server, &endless());
    until("it waits", || engine.metrics().open == 1);
    drop(stream);
    drop(held);
    gone("waiting");
    // While it is answered, whole and streamed.
    let stream = send(&server, &endless());
    until("it is answered", || engine.metrics().running == 1);
    drop(stream);
    gone("whole");
    let mut stream = Open::post(server.at, CHAT, &with(endless(), json!({"stream": true})));
    assert!(stream.line("data: ").is_some());
    drop(stream);
    gone("streamed");
    // While its prompt is read.
    let long =
        json!({"messages": [{"role": "user", "content": "word ".repeat(400)}], "ignore_eos": true});
    let stream = send(&server, &long);
    until("it is read", || engine.metrics().running == 1);
    drop(stream);
    gone("prompt");
    assert!(!said(&post(server.at, CHAT, &story(5))).is_empty());
    until("it is counted", || {
        let counted =
            "request_success_total{model_name=\"pebble\",finished_reason=\"cancelled\"} 4";
        get(server.at, "/metrics").text().contains(counted)
    });
}

/// A connection that takes little at once.
fn deaf(at: std::net::SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(at).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    })
}

#[test]
fn c2_a_reader_that_stops_is_cut_off_and_others_are_served() {
    let mut config = config();
    config.limits.write_seconds = 1;
    config.limits.events = 64;
    let server = start(&config, vec![source("pebble")]);
    let engine = server.engine("pebble");
    // Far more than sockets hold.
    let mut much = json!({"stream": true, "n": 8, "logprobs": true, "top_logprobs": 20});
    let word =
        post(server.at, "/tokenize", &json!({"content": "fox"})).json()["tokens"][0].to_string();
    much["logit_bias"] = json!({word: 100});
    let mut stream = deaf(server.at);
    let body = with(endless(), much).to_string();
    stream.write_all(&request("POST", CHAT, &[], body.as_bytes())).unwrap();
    until("it is answered", || engine.metrics().running > 0);
    let alone = said(&post(shared(), CHAT, &story(30)));
    assert_eq!(said(&post(server.at, CHAT, &story(30))), alone);
    until("it is over", || engine.metrics().open == 0);
    assert!(engine.metrics().cancelled > 0, "{:?}", engine.metrics());
    drop(stream);
}

#[test]
fn c3_a_full_queue_is_429_with_when_to_try_again() {
    let server = narrow(1, |_| {});
    let engine = server.engine("pebble");
    let held = hold(&engine);
    let waiting: Vec<TcpStream> = (0..2).map(|_| send(&server, &story(3))).collect();
    until("both wait", || engine.metrics().open == 2);
    for stream in [false, true] {
        let reply = post(server.at, CHAT, &with(story(3), json!({"stream": stream})));
        assert_eq!((reply.status, reply.error("code")), (429, "queue_full".into()));
        assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    }
    drop(held);
    for stream in waiting {
        assert_eq!(read(stream).status, 200);
    }
    assert_eq!(post(server.at, CHAT, &story(3)).status, 200);
    // More answers than could ever be under way.
    assert_eq!(post(server.at, CHAT, &with(story(3), json!({"n": 3}))).error("param"), "n");
}

#[test]
fn c4_answers_that_wait_for_pages_are_the_same() {
    let one = load().sequences(1).plan(&pebble()).unwrap().memory.kv;
    let tight = load().sequences(4).kv_memory(one);
    let server = start(&config(), vec![lapidary_server::Source::new("pebble", pebble(), tight)]);
    let at = server.at;
    let ask = |i: usize| {
        let text = format!("Tell me a story about {i} brave foxes.");
        json!({"messages": [{"role": "user", "content": text}], "temperature": 0.8, "seed": i,
            "max_tokens": 400, "ignore_eos": true})
    };
    let together: Vec<_> =
        (0..4).map(|i| std::thread::spawn(move || said(&post(at, CHAT, &ask(i))))).collect();
    let together: Vec<String> = together.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(server.engine("pebble").metrics().preempted > 0);
    for (i, text) in together.iter().enumerate() {
        assert_eq!(*text, said(&post(shared(), CHAT, &ask(i))));
    }
}

#[test]
fn c5_keys_share_nothing_and_images_are_told_apart() {
    let config = Config { api_key: vec!["one".into(), "two".into()], ..config() };
    let server = start(&config, vec![source("pebble")]);
    let cached = |key: &str| {
        let reply = post_as(server.at, CHAT, key, &story(3));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached("one"), 0);
    assert_eq!(cached("two"), 0);
    assert!(cached("one") > 5 && cached("two") > 5);
    let ask = |key: &str, image: &str| {
        let path = format!("{}/../../pebble/heldout/images/{image}", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(path).unwrap();
        let url =
            format!("data:image/png;base64,{}", lapidary_server::service::base64::encode(&bytes));
        let content = json!([{"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "Describe this image."}]);
        let body = json!({"messages": [{"role": "user", "content": content}], "temperature": 0});
        said(&post_as(server.at, CHAT, key, &body))
    };
    let (first, second) = ("drawing17.png", "drawing18.png");
    let shown = ask("one", first);
    assert_ne!(ask("one", second), shown);
    assert_eq!(ask("two", second), ask("one", second));
}

#[test]
fn c6_a_panic_is_that_requests_alone() {
    let mock = Mock::default().sized(64, 8, 8);
    let server = start(&config(), vec![mock_source("mock", &mock)]);
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0});
    let fine = post(server.at, "/v1/completions", &body);
    assert_eq!(fine.status, 200, "{}", fine.text());
    for (fault, code) in [
        (Fault::Panic, "internal_error"),
        (Fault::Error, "device_error"),
        (Fault::LateError, "device_error"),
        (Fault::Nan, "non_finite_logits"),
    ] {
        server.engine("mock").forget().unwrap();
        mock.clear_log();
        mock.fail(0, fault);
        let reply = post(server.at, "/v1/completions", &body);
        assert_eq!((reply.status, reply.error("code")), (500, code.into()), "{}", reply.text());
        // Row X9: nothing of what happened, and where to look.
        let message = reply.error("message").as_str().unwrap().to_string();
        assert!(!message.contains("mock") && !message.contains("unplugged"), "{message}");
        assert_eq!(reply.json()["request_id"], reply.header("x-request-id").unwrap());
        assert_eq!(get(server.at, "/health").status, 200);
        mock.clear_log();
        mock.faults.lock().unwrap().clear();
        assert_eq!(post(server.at, "/v1/completions", &body).status, 200);
    }
    until("the log says what happened", || server.log().contains("mock panic"));
}

#[test]
fn c6_a_handler_that_panics_is_a_500() {
    let log = Log::to(LogFormat::Json, true, Box::new(std::io::sink()));
    let app = lapidary_server::App::new(&config(), vec![source("pebble")], log).unwrap();
    let router = axum::Router::new().route(
        "/boom",
        axum::routing::get(|| async {
            if true {
                panic!("a test's own");
            }
        }),
    );
    let request = axum::http::Request::builder().uri("/boom").header("host", "localhost");
    let request = request.body(axum::body::Body::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let response = lapidary_server::http::enter(&app, router, true, request).await;
        assert_eq!(response.status(), 500);
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "internal_error");
        assert!(!body.to_string().contains("a test's own"), "{body}");
    });
}

#[test]
fn c7_answers_under_way_are_complete_before_the_end() {
    let mut server = narrow(4, |_| {});
    let engine = server.engine("pebble");
    let mut stream = Open::post(server.at, CHAT, &with(endless(), json!({"stream": true})));
    assert!(stream.line("data: ").is_some());
    server.stop();
    let mut last = String::new();
    while let Some(line) = stream.line("data: ") {
        last = line;
    }
    assert_eq!(last, "data: [DONE]\n");
    assert_eq!(server.ended(), Outcome::Drained);
    assert!(engine.answer(lapidary::Request::text("x")).is_err());
}

#[test]
fn c7_answers_that_take_too_long_are_told_so() {
    let mut server = narrow(4, |config| config.limits.drain_seconds = 0);
    let held = hold(&server.engine("pebble"));
    let mut stream = Open::post(server.at, CHAT, &with(story(5), json!({"stream": true})));
    assert!(stream.line(": ping").is_some());
    server.stop();
    let mut all = Vec::new();
    while let Some(line) = stream.line("data: ") {
        all.push(line);
    }
    assert!(all.last().unwrap().contains("shutting_down"), "{all:?}");
    drop(held);
    assert_eq!(server.ended(), Outcome::CutOff);
}

#[test]
fn c8_a_port_in_use_is_said_and_a_log_that_fails_stops_nobody() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let port = shared().port();
    let config = Config { port, ..config() };
    let log = Log::to(LogFormat::Json, true, Box::new(std::io::sink()));
    let bound = runtime.block_on(Server::bind(&config, vec![source("pebble")], log));
    let said = bound.err().unwrap();
    assert!(said.contains("in use") && said.contains("--port"), "{said}");
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
    }
    let server =
        start_logging(&crate::config(), vec![source("pebble")], Default::default(), Box::new(Full));
    for _ in 0..20 {
        assert_eq!(post(server.at, CHAT, &story(2)).status, 200);
    }
}

#[test]
fn c11_an_engine_that_hangs_is_noticed() {
    let server = narrow(4, |config| config.limits.stall_seconds = 1);
    let engine = server.engine("pebble");
    assert_eq!(get(server.at, "/ready").status, 200);
    let held = hold(&engine);
    let stream = send(&server, &story(3));
    until("it waits", || engine.metrics().open == 1);
    until("it is noticed", || get(server.at, "/ready").status == 503);
    assert_eq!(get(server.at, "/ready").json()["status"], "stalled");
    assert_eq!(get(server.at, "/health").status, 200);
    until("it is logged", || server.log().contains("its device may hang"));
    drop(held);
    assert_eq!(read(stream).status, 200);
    until("it is over", || get(server.at, "/ready").status == 200);
    // Whoever wants that ends then.
    let mut config = Config { exit_on_stall: true, ..config() };
    config.limits.stall_seconds = 1;
    let mut server = start(&config, vec![source("pebble")]);
    let held = hold(&server.engine("pebble"));
    let stream = send(&server, &story(3));
    let outcome = server.thread.take().unwrap().join().unwrap();
    assert_eq!(outcome, Outcome::Stalled);
    drop((held, stream));
}

#[test]
fn a_deadline_ends_a_request() {
    let server = narrow(4, |config| config.limits.request_seconds = 1);
    let held = hold(&server.engine("pebble"));
    let reply = post(server.at, CHAT, &story(3));
    assert_eq!((reply.status, reply.error("code")), (504, "deadline_exceeded".into()));
    let reply = post(server.at, CHAT, &with(story(3), json!({"stream": true})));
    assert!(reply.status == 504 || reply.text().contains("deadline_exceeded"), "{}", reply.text());
    drop(held);
    // A machine that is busy may need longer than that.
    until("it answers", || {
        let after = post(server.at, CHAT, &with(story(3), json!({"stream": true})));
        after.status == 200
            && !after.text().contains("deadline_exceeded")
            && !streamed(&after).is_empty()
    });
}
