//! Cancelling, waiting and refusing.

use std::sync::mpsc;
use std::time::Duration;

use lapidary::{Engine, Error, ErrorCode, Event, Media, Message, Metrics, Request};

use crate::{drawing, load, pebble, story};

/// Metrics once nothing is under way; the engine is asked, so nothing is slept for.
fn settled(engine: &Engine) -> Metrics {
    while engine.metrics().open > 0 {
        engine.with_runner(|_| ()).unwrap();
    }
    engine.with_runner(|_| ()).unwrap();
    engine.metrics()
}

/// Holds the engine until the sender is dropped.
fn hold(engine: &Engine) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    let engine = engine.clone();
    std::thread::spawn(move || {
        let _ = engine.with_runner(move |_| {
            begun.send(()).unwrap();
            let _ = held.recv();
        });
    });
    begins.recv().unwrap();
    release
}

#[test]
fn m10_dropping_an_answer_cancels_it_wherever_it_is() {
    let engine = pebble().load(load().sequences(1)).unwrap();
    // In the queue: it is never begun.
    let held = hold(&engine);
    drop(engine.answer(story()).unwrap());
    drop(held);
    let metrics = settled(&engine);
    assert_eq!((metrics.cancelled, metrics.new_tokens, metrics.pages_in_use), (1, 0, 0));
    // In the runner's own queue, while another is answered.
    let mut first = engine.answer(story().max_tokens(400)).unwrap();
    assert!(matches!(first.next(), Some(Ok(Event::Text(_)))));
    drop(engine.answer(story()).unwrap());
    // While it is answered.
    drop(first);
    let metrics = settled(&engine);
    assert_eq!((metrics.cancelled, metrics.pages_in_use), (3, 0), "{metrics:?}");
    // While its image is looked at or its prompt read: as soon as the engine has it.
    let shown = Message::new("user").media(Media::image(drawing())).text("Describe this image.");
    for _ in 0..3 {
        let answer = engine.answer(Request::chat(vec![shown.clone()])).unwrap();
        while engine.metrics().running == 0 {
            std::thread::yield_now();
        }
        drop(answer);
        assert_eq!(settled(&engine).pages_in_use, 0);
    }
    // The engine is as good as new.
    assert!(!engine.answer(story()).unwrap().text().unwrap().is_empty());
}

#[test]
fn a_full_queue_refuses() {
    let engine = pebble().load(load().sequences(1).queue(2)).unwrap();
    let held = hold(&engine);
    let answers: Vec<_> = (0..3).map(|_| engine.answer(story()).unwrap()).collect();
    let e = engine.answer(story()).unwrap_err();
    assert!(matches!(e, Error::QueueFull { open: 3 }), "{e}");
    assert_eq!((e.code(), e.code().http()), (ErrorCode::QueueFull, 429));
    assert_eq!(engine.metrics().waiting, 3);
    drop(held);
    let said: Vec<String> = answers.into_iter().map(|a| a.text().unwrap()).collect();
    assert!(said.iter().all(|s| *s == said[0] && !s.is_empty()), "{said:?}");
    assert!(engine.answer(story()).is_ok());
}

#[test]
fn a_slow_reader_is_cancelled_and_others_are_served() {
    // Long enough for whoever does read, on a busy machine too.
    let load = load().sequences(2).events(2).patience(Duration::from_secs(3));
    let engine = pebble().load(load).unwrap();
    let mut slow = engine.answer(story().max_tokens(400)).unwrap();
    assert!(matches!(slow.next(), Some(Ok(Event::Text(_)))));
    // Nobody reads it from here on.
    assert!(!engine.answer(story().max_tokens(8)).unwrap().text().unwrap().is_empty());
    assert_eq!(settled(&engine).cancelled, 1);
    let end = slow.by_ref().find_map(Result::err).expect("it was cancelled");
    assert!(matches!(end, Error::SlowReader { .. }), "{end}");
    assert_eq!(end.code(), ErrorCode::SlowReader);
    assert!(slow.next().is_none());
}

#[test]
fn a_request_that_is_wrong_fails_alone() {
    let engine = pebble().load(load()).unwrap();
    let long = Message::user("word ".repeat(2000));
    let e = engine.answer(Request::chat(vec![long])).unwrap_err();
    assert_eq!(e.code(), ErrorCode::ContextLengthExceeded);
    let e = engine.answer(story().temperature(-1.0)).unwrap_err();
    assert_eq!(e.code(), ErrorCode::InvalidArgument);
    assert!(!engine.answer(story()).unwrap().text().unwrap().is_empty());
    // Neither came as far as the engine.
    assert_eq!(engine.metrics().failed, 0);
}

#[test]
fn a_panic_of_the_thread_leaves_nobody_waiting() {
    let engine = pebble().load(load()).unwrap();
    let held = hold(&engine);
    let answer = engine.answer(story()).unwrap();
    let other = engine.clone();
    let asked = std::thread::spawn(move || other.with_runner(|_| panic!("a test's own")));
    while engine.metrics().open == 0 {
        std::thread::yield_now();
    }
    drop(held);
    let e: Result<(), Error> = asked.join().unwrap();
    assert!(matches!(e, Err(Error::Stopped { .. })), "{e:?}");
    // The answer was whole before, or it is an error; it is not waited for without end.
    if let Err(e) = answer.text() {
        assert_eq!(e.code(), ErrorCode::Internal);
    }
    let e = engine.answer(story()).unwrap_err();
    assert!(e.to_string().contains("a test's own"), "{e}");
}
