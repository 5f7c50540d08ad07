//! The load test of a server, against servers that count and that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use lapidary_measure::{ServeReport, ServeTest, ServerError, ServerUrl, bench_server};
use serde_json::{Value, json};

const TEST: ServeTest = ServeTest {
    model: None,
    n_requests: 12,
    concurrency: 3,
    request_rate: f64::INFINITY,
    n_prompt: 10,
    n_gen: 4,
    seed: 1,
};

/// Answers every request for a completion by a function of its body, on a thread of its own.
fn server(reply: impl Fn(Value, &mut TcpStream) + Send + Sync + 'static) -> ServerUrl {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = listener.local_addr().expect("an address");
    let reply = Arc::new(reply);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let reply = reply.clone();
            std::thread::spawn(move || answer(stream.expect("a connection"), &*reply));
        }
    });
    ServerUrl::new(&format!("http://{at}"), None).expect("an address")
}

fn answer(mut stream: TcpStream, reply: &dyn Fn(Value, &mut TcpStream)) {
    let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
    let (mut head, mut line) = (String::new(), String::new());
    while reader.read_line(&mut line).expect("a request") > 2 {
        head.push_str(&line.to_lowercase());
        line.clear();
    }
    if head.starts_with("get /v1/models ") {
        let list = json!({"data": [{"id": "first"}, {"id": "second"}]}).to_string();
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len())
            .expect("sent");
        return;
    }
    assert!(head.starts_with("post /v1/completions "), "{head}");
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.expect("a length").parse().expect("a number")];
    reader.read_exact(&mut body).expect("a body");
    reply(serde_json::from_slice(&body).expect("JSON"), &mut stream);
}

fn start(stream: &mut TcpStream) {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").expect("sent");
}

/// An event of a stream, cut into two chunks.
fn send(stream: &mut TcpStream, data: &str) {
    let event = format!("data: {data}\n\n");
    let (a, b) = event.split_at(7);
    for part in [a, b] {
        write!(stream, "{:x}\r\n{part}\r\n", part.len()).expect("sent");
    }
}

fn piece(stream: &mut TcpStream) {
    send(stream, r#"{"choices":[{"text":"a"}]}"#);
}

/// Two tokens for each word, and all tokens that are asked for, 20 ms each.
fn whole(request: &Value, stream: &mut TcpStream) {
    tokens(request, stream);
    end(stream);
}

fn tokens(request: &Value, stream: &mut TcpStream) {
    start(stream);
    let n_read = 2 * request["prompt"].as_str().expect("a prompt").split(' ').count();
    let n_made = request["max_tokens"].as_u64().expect("a number");
    for _ in 0..n_made {
        std::thread::sleep(Duration::from_millis(20));
        piece(stream);
    }
    send(stream, r#"{"choices":[{"text":"","finish_reason":"length"}]}"#);
    let usage = json!({"prompt_tokens": n_read, "completion_tokens": n_made});
    send(stream, &json!({"choices": [], "usage": usage}).to_string());
}

fn end(stream: &mut TcpStream) {
    send(stream, "[DONE]");
    stream.write_all(b"0\r\n\r\n").expect("sent");
}

fn refuse(stream: &mut TcpStream, status: u16, message: &str) {
    let body = json!({"error": {"message": message}}).to_string();
    write!(stream, "HTTP/1.1 {status} No\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .expect("sent");
}

#[test]
fn requests_are_under_way_at_once_and_counted_as_the_server_counts() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = most.clone();
    let url = server(move |request, stream| {
        assert_eq!(request["model"], "first");
        assert_eq!(request["ignore_eos"], true);
        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        tokens(&request, stream);
        // Before the client knows, and sends the next.
        now.fetch_sub(1, SeqCst);
        end(stream);
    });
    let report = bench_server(&url, &TEST).expect("it is measured");
    let ServeReport { model, served, failed, ignores_eos, duration_s } = &report;
    assert_eq!((model.as_str(), served.len(), *ignores_eos), ("first", 12, true));
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(seen.load(SeqCst), 3);
    // Four waves of four tokens of 20 ms.
    assert!(*duration_s >= 0.32, "{duration_s}");
    // Each word is two tokens here, so five words make a prompt.
    assert_eq!((report.n_prompt(), report.n_gen()), (12 * 10, 12 * 4));
    assert!(served.iter().all(|s| s.between_s.len() == 3 && s.first_s >= 0.02), "{served:?}");
    assert!(report.itl().median_ms > 1.0 && report.ttft().median_ms >= 20.0);
    assert!(report.tpot().mean_ms > 1.0);
}

#[test]
fn one_request_at_once_is_one() {
    let now = AtomicUsize::new(0);
    let url = server(move |request, stream| {
        assert_eq!(now.fetch_add(1, SeqCst), 0, "two at once");
        start(stream);
        assert_eq!(request["model"], "second");
        piece(stream);
        std::thread::sleep(Duration::from_millis(5));
        now.fetch_sub(1, SeqCst);
        send(stream, "[DONE]");
    });
    let test = ServeTest { concurrency: 1, model: Some("second".into()), ..TEST };
    let report = bench_server(&url, &test).expect("it is measured");
    assert!(report.failed.is_empty(), "{:?}", report.failed);
    // This server does not count, so its pieces and what was asked for are.
    assert_eq!((report.n_prompt(), report.n_gen()), (12 * 10, 12));
}

#[test]
fn a_server_that_knows_no_ignore_eos_is_asked_without() {
    let url = server(|request, stream| match request.get("ignore_eos") {
        Some(_) => refuse(stream, 400, "unknown field"),
        None => whole(&request, stream),
    });
    let report = bench_server(&url, &TEST).expect("it is measured");
    assert_eq!((report.served.len(), report.ignores_eos), (12, false));
}

#[test]
fn requests_that_fail_are_counted_apart() {
    let n = AtomicUsize::new(0);
    let url = server(move |request, stream| match n.fetch_add(1, SeqCst) {
        // A refusal, an answer that breaks off, an error in the stream, and no JSON.
        2 => refuse(stream, 503, "busy"),
        3 => {
            start(stream);
            piece(stream);
        }
        4 => {
            start(stream);
            send(stream, r#"{"error":{"message":"lost"}}"#);
        }
        5 => {
            start(stream);
            send(stream, "{");
        }
        _ => whole(&request, stream),
    });
    let report = bench_server(&url, &TEST).expect("it is measured");
    assert_eq!((report.served.len(), report.failed.len()), (8, 4), "{:?}", report.failed);
    let said: Vec<String> = report.failed.iter().map(ToString::to_string).collect();
    for words in ["503: busy", "broke off", "lost", "not JSON"] {
        assert!(said.iter().any(|e| e.contains(words)), "{words}: {said:?}");
    }
    assert_eq!(report.n_gen(), 8 * 4, "only whole answers count");
}

#[test]
fn what_is_no_such_server_is_an_error() {
    let says = |bytes: &'static str| {
        let url = server(move |_, stream| stream.write_all(bytes.as_bytes()).expect("sent"));
        bench_server(&url, &TEST).expect_err("it is none")
    };
    assert!(matches!(says("SSH-2.0-x\r\n"), ServerError::Garbage(_)));
    assert!(matches!(says(""), ServerError::BrokeOff(_)));
    assert!(matches!(says("HTTP/1.1 200 OK\r\n\r\n"), ServerError::BrokeOff(_)));
    let missing = says("HTTP/1.1 404 No\r\ncontent-length: 4\r\n\r\nnone");
    assert_eq!(missing.to_string(), "the server answered 404: none");
    let bad = says("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n");
    assert!(bad.to_string().contains("chunk"), "{bad}");
}
