//! Requests and their events.

use std::pin::Pin;

use futures_core::Stream;
use lapidary::{ErrorCode, Event, FinishReason, Grammar, Message, Request, Sampling};

use crate::{engine, story};

fn texts(events: &[Event]) -> String {
    let text = |e: &Event| match e {
        Event::Text(text) => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

/// Times differ from run to run.
fn without_times(events: Vec<Event>) -> Vec<Event> {
    let plain = |e| match e {
        Event::Finished(mut finish) => {
            finish.stats = lapidary::Stats {
                prompt_tokens: finish.stats.prompt_tokens,
                new_tokens: finish.stats.new_tokens,
                ..Default::default()
            };
            Event::Finished(finish)
        }
        e => e,
    };
    events.into_iter().map(plain).collect()
}

#[test]
fn a_stream_is_what_the_iterator_is() {
    let asked = || story().tokens().seed(7);
    let waited: Vec<Event> = engine().answer(asked()).unwrap().map(Result::unwrap).collect();
    let streamed = pollster::block_on(async {
        let mut answer = engine().answer(asked()).unwrap();
        let mut events = Vec::new();
        while let Some(event) =
            std::future::poll_fn(|context| Pin::new(&mut answer).poll_next(context)).await
        {
            events.push(event.unwrap());
        }
        events
    });
    assert!(matches!(waited.last(), Some(Event::Finished(_))));
    assert!(waited.len() > 40, "{waited:?}");
    assert_eq!(without_times(streamed), without_times(waited.clone()));
    let reply = pollster::block_on(engine().answer(asked()).unwrap().into_reply()).unwrap();
    assert_eq!(reply.text, texts(&waited));
}

#[test]
fn the_same_seed_gives_the_same_text_alone_and_among_eight() {
    let asked = |seed: u64| {
        let topic = ["fox", "bear", "mouse", "owl"][seed as usize % 4];
        let message = Message::user(format!("Tell me a story about a brave {topic}."));
        Request::chat(vec![message]).seed(seed).max_tokens(32)
    };
    let alone: Vec<String> =
        (0..8).map(|seed| engine().answer(asked(seed)).unwrap().text().unwrap()).collect();
    let answers: Vec<_> = (0..8).map(|seed| engine().answer(asked(seed)).unwrap()).collect();
    let together: Vec<String> = answers.into_iter().map(|a| a.text().unwrap()).collect();
    assert_eq!(together, alone);
    // Seeds matter.
    assert_ne!(alone[0], alone[4]);
}

#[test]
fn many_threads_share_one_engine() {
    let want = engine().answer(story()).unwrap().text().unwrap();
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let engine = engine().clone();
            std::thread::spawn(move || engine.answer(story()).unwrap().text().unwrap())
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), want);
    }
}

#[test]
fn what_is_asked_for_is_told_and_nothing_else() {
    let plain: Vec<Event> = engine().answer(story()).unwrap().map(Result::unwrap).collect();
    assert!(plain.iter().all(|e| matches!(e, Event::Text(_) | Event::Finished(_))), "{plain:?}");
    let asked = story().logprobs(3).progress().max_tokens(5).scope(1);
    let told: Vec<Event> = engine().answer(asked).unwrap().map(Result::unwrap).collect();
    let mut tokens = 0;
    for event in &told {
        if let Event::Token { id, logprobs: Some(found) } = event {
            tokens += 1;
            assert_eq!(found.top.len(), 3);
            // Greedy: what was chosen is the likeliest.
            assert_eq!(found.top[0], (*id, found.logprob));
            assert!(found.logprob <= 0.0);
        }
    }
    assert_eq!(tokens, 5, "{told:?}");
    let mut read = told.iter().filter_map(|e| match e {
        Event::Progress { done, total } => Some((*done, *total)),
        _ => None,
    });
    let (done, total) = read.next_back().expect("progress is told");
    assert_eq!(done, total);
}

#[test]
fn plain_text_ids_and_stops() {
    let text = "Once upon a time";
    let continued = Request::text(text).sampling(Sampling::greedy()).max_tokens(12);
    let said = engine().answer(continued.clone()).unwrap().text().unwrap();
    let ids = engine().model().tokenise(text).unwrap();
    let of_ids = Request::ids(ids, vec![]).sampling(Sampling::greedy()).max_tokens(12);
    assert_eq!(engine().answer(of_ids).unwrap().text().unwrap(), said);
    // The first word with a space before it ends it.
    let stop = said.split_inclusive(' ').nth(1).unwrap().to_string();
    let stopped = engine().answer(continued.stop(vec![stop.clone()])).unwrap().reply().unwrap();
    assert_eq!(stopped.finish.unwrap().reason, FinishReason::Stop);
    assert!(said.starts_with(&stopped.text) && !stopped.text.contains(&stop));
}

#[test]
fn a_token_ends_an_answer_from_elsewhere_with_what_was_said() {
    let mut answer = engine().answer(story().max_tokens(400)).unwrap();
    let token = answer.cancel_token();
    assert!(matches!(answer.next(), Some(Ok(Event::Text(_)))));
    token.cancel();
    let last = answer.by_ref().last().unwrap().unwrap();
    assert!(matches!(last, Event::Finished(f) if f.reason == FinishReason::Cancelled));
    assert!(!answer.so_far().text.is_empty());
    assert!(answer.next().is_none());
}

#[test]
fn a_grammar_holds_the_answer() {
    let asked = |grammar| story().grammar(grammar).max_tokens(100);
    let digits = Grammar::Regex("[0-9]{3}-(fox|bear)".into());
    let said = engine().answer(asked(digits)).unwrap().text().unwrap();
    let (number, animal) = said.split_once('-').expect(&said);
    assert!(number.len() == 3 && number.parse::<u32>().is_ok(), "{said}");
    assert!(["fox", "bear"].contains(&animal), "{said}");
    let calls = Grammar::ToolCalls { tools: crate::tools(), required: true, parallel: false };
    let reply = engine().answer(asked(calls)).unwrap().reply().unwrap();
    assert_eq!(reply.tool_calls.len(), 1, "{reply:?}");
    let e = engine().answer(asked(Grammar::Regex("(".into()))).unwrap_err();
    assert_eq!(e.code(), ErrorCode::InvalidArgument);
}
