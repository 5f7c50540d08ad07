//! What HTTP costs: the first token over a socket, and from the engine itself, in turns.

use std::time::{Duration, Instant};

use lapidary::{Event, Message, Request};
use serde_json::json;

use crate::client::Open;
use crate::{CHAT, config, source, start};

/// How many times each way is measured; the rest of the machine disturbs some of them.
const TIMES: usize = 60;
/// How much later a first token may come over HTTP.
const LIMIT: Duration = Duration::from_millis(2);
const QUESTION: &str = "Tell me a story about a brave fox and an owl.";

/// Twenty tokens, as the built-in model counts them with its template.
#[test]
fn the_first_token_comes_over_http_nearly_as_soon_as_from_the_library() {
    let server = start(&config(), vec![source("pebble")]);
    let engine = server.engine("pebble");
    let request = || {
        let messages = vec![Message::user(QUESTION)];
        Request::chat(messages).temperature(0.0).max_tokens(2)
    };
    let n = request().prompt(engine.model()).unwrap().tokens.len();
    assert!((18..=22).contains(&n), "{n} tokens");
    let direct = || {
        let begun = Instant::now();
        let mut answer = engine.answer(request()).unwrap();
        let first = answer.find(|event| matches!(event, Ok(Event::Text(_))));
        let took = begun.elapsed();
        assert!(first.is_some());
        answer.for_each(drop);
        took
    };
    let body = json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0,
        "max_tokens": 2, "stream": true});
    let over_http = || {
        let begun = Instant::now();
        let mut stream = Open::post(server.at, CHAT, &body);
        while let Some(line) = stream.line("data: ") {
            if line.contains("\"content\"") && !line.contains("\"content\":\"\"") {
                let took = begun.elapsed();
                while stream.line("data: ").is_some() {}
                return took;
            }
        }
        panic!("a stream without text");
    };
    // What is made once is made here.
    direct();
    over_http();
    let (mut library, mut http) = (vec![], vec![]);
    for _ in 0..TIMES {
        library.push(direct());
        http.push(over_http());
    }
    library.sort();
    http.sort();
    let ms = |all: &[Duration], at: usize| all[at].as_secs_f64() * 1e3;
    println!(
        "first of {n} tokens, {TIMES} times each, in ms (least, median): library {:.2} {:.2}, \
         http {:.2} {:.2}",
        ms(&library, 0),
        ms(&library, TIMES / 2),
        ms(&http, 0),
        ms(&http, TIMES / 2),
    );
    // A machine that does something else besides delays most of them, but hardly all.
    let more = http[0].saturating_sub(library[0]);
    assert!(more <= LIMIT, "{more:?} more");
}
