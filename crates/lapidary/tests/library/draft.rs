//! Guesses of the next tokens, with a model that means something.

use lapidary::{Draft, Engine, Finish, Grammar, Message, Reply, Request};

use crate::{engine, load, pebble, story};

fn replies(engine: &Engine, requests: Vec<Request>) -> Vec<Reply> {
    let answers: Vec<_> = requests.into_iter().map(|r| engine.answer(r).unwrap()).collect();
    answers.into_iter().map(|answer| answer.reply().unwrap()).collect()
}

fn finish(reply: &Reply) -> &Finish {
    reply.finish.as_ref().unwrap()
}

/// Stories greedy and drawn, a text that repeats itself, and answers that a grammar holds.
fn requests() -> Vec<Request> {
    let story = |animal: &str| {
        let message = Message::user(format!("Tell me a story about a brave {animal}."));
        Request::chat(vec![message]).max_tokens(100)
    };
    let repeats = "One fox, two foxes. One fox, two foxes. One fox, two foxes. One fox,";
    let list = Grammar::Regex("(the fox and the bear, ){5}the end".into());
    let mut requests = vec![
        story("fox").temperature(0.0),
        story("bear").temperature(0.0).stop(vec!["brave".into()]),
        Request::text(repeats).temperature(0.0).max_tokens(60),
        crate::story().grammar(list.clone()).max_tokens(100),
        crate::story().grammar(list).temperature(1.0).seed(3).max_tokens(100),
    ];
    requests.extend((0..4).map(|seed| story("owl").temperature(0.7).seed(seed)));
    requests
}

#[test]
fn answers_are_the_same_with_lookup() {
    let drafting = pebble().load(load().sequences(8).draft(Draft::Lookup)).unwrap();
    let plain = replies(engine(), requests());
    // Together, and then alone.
    let together = replies(&drafting, requests());
    let alone: Vec<Reply> =
        requests().into_iter().flat_map(|request| replies(&drafting, vec![request])).collect();
    for ((plain, together), alone) in plain.iter().zip(&together).zip(&alone) {
        assert_eq!(together.text, plain.text);
        assert_eq!(alone.text, plain.text);
        assert_eq!(finish(alone).reason, finish(plain).reason);
        assert_eq!(finish(alone).stats.new_tokens, finish(plain).stats.new_tokens);
        assert_eq!(finish(plain).stats.drafted_tokens, 0);
    }
    let accepted: usize = alone.iter().map(|reply| finish(reply).stats.accepted_tokens).sum();
    assert!(accepted > 20, "{accepted} guesses were right");
    // A grammar that repeats itself is guessed, too.
    let held = &finish(&alone[3]).stats;
    assert!(held.accepted_tokens > 3, "{held:?}");
}

#[test]
fn nothing_is_guessed_unless_it_is_asked_for() {
    let reply = replies(engine(), vec![story()]).remove(0);
    assert_eq!(finish(&reply).stats.draft_calls, 0);
}
