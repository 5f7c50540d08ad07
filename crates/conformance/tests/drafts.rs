//! Guesses of the next tokens with weights that mean something: pebble and its drafter.
//!
//! Whatever guesses, an answer is the same as without. On the CPU 300 prompts are asked, a test for
//! each kind of request; on slow engines a few of every kind.

use std::path::{Path, PathBuf};

use lapidary::{
    Draft, Engine, ErrorCode, Finish, Grammar, Load, Message, Model, Open, PEBBLE, Reply, Request,
};
use serde_json::json;

/// Sequences that are answered together.
const TOGETHER: u32 = 8;
const ANIMALS: [&str; 20] = [
    "fox", "rabbit", "bear", "mouse", "owl", "frog", "duck", "cat", "dog", "horse", "goat",
    "sheep", "cow", "pig", "hen", "wolf", "deer", "otter", "crow", "swan",
];
const PLACES: [&str; 3] = ["forest", "castle", "island"];

/// Pebble with its drafter, which guesses only where it is asked to.
fn model() -> Model {
    Open::new().draft(PEBBLE).open(PEBBLE).unwrap()
}

/// An engine on a backend's first device; nothing where there is none.
fn engine(backend: &str, draft: Draft) -> Option<Engine> {
    let load = Load::default().backend(backend).context(256).chunk(64).sequences(TOGETHER);
    match model().load(load.threads(2).draft(draft).queue(512).pack_cache(None)) {
        Ok(engine) => Some(engine),
        Err(e) if e.code() == ErrorCode::Device => {
            eprintln!("SKIPPED: {backend} has no device here: {e}");
            None
        }
        Err(e) => panic!("{backend}: {e}"),
    }
}

fn together(engine: &Engine, requests: &[Request]) -> Vec<Reply> {
    let ask = |request: &Request| engine.answer(request.clone()).unwrap();
    let answers: Vec<_> = requests.iter().map(ask).collect();
    answers.into_iter().map(|answer| answer.reply().unwrap()).collect()
}

fn finish(reply: &Reply) -> &Finish {
    reply.finish.as_ref().unwrap()
}

/// All requests together, and every `step`-th alone, with lookup and with the drafter: as without.
/// How many guesses were right, by lookup and by the drafter.
fn same(backend: &str, requests: &[Request], step: usize) -> Option<[usize; 2]> {
    let plain = together(&engine(backend, Draft::Off)?, requests);
    assert!(plain.iter().all(|reply| finish(reply).stats.drafted_tokens == 0));
    let accepted = [Draft::Lookup, Draft::Model].map(|draft| {
        let engine = engine(backend, draft).unwrap();
        let all = together(&engine, requests);
        let alone = requests
            .iter()
            .step_by(step)
            .map(|r| together(&engine, std::slice::from_ref(r)).remove(0));
        let places = (0..requests.len()).chain((0..requests.len()).step_by(step));
        let mut accepted = 0;
        for (at, reply) in places.zip(all.into_iter().chain(alone)) {
            let what = format!("{backend}, {draft:?}, request {at}");
            assert_eq!(reply.text, plain[at].text, "{what}");
            assert_eq!(reply.thinking, plain[at].thinking, "{what}");
            assert_eq!(reply.tool_calls, plain[at].tool_calls, "{what}");
            assert_eq!(reply.tokens, plain[at].tokens, "{what}");
            let [ours, theirs] = [&reply, &plain[at]].map(finish);
            assert_eq!(ours.reason, theirs.reason, "{what}");
            assert_eq!(ours.stats.new_tokens, theirs.stats.new_tokens, "{what}");
            accepted += ours.stats.accepted_tokens;
        }
        accepted
    });
    Some(accepted)
}

fn ask(text: impl Into<String>) -> Request {
    Request::chat(vec![Message::user(text.into())]).max_tokens(40).tokens()
}

fn story(i: usize) -> Request {
    let (animal, place) = (ANIMALS[i % ANIMALS.len()], PLACES[i / ANIMALS.len() % PLACES.len()]);
    match i % 3 {
        0 => ask(format!("Tell me a story about a brave {animal}.")),
        1 => ask(format!("I want to hear a story about the {place}.")),
        _ => ask(format!("Finish this story: Once upon a time a {animal} lived near the {place}.")),
    }
}

/// 60 prompts.
fn greedy() -> Vec<Request> {
    (0..60).map(|i| story(i).temperature(0.0)).collect()
}

/// 20 prompts with five seeds each.
fn drawn() -> Vec<Request> {
    let temperature = |i: usize| [0.5, 0.8, 1.2][i % 3];
    let seeded = |i: usize| (0..5).map(move |seed| story(i).temperature(temperature(i)).seed(seed));
    (0..20).flat_map(seeded).collect()
}

/// 40 prompts: a text that repeats itself, JSON of a schema, and calls of tools.
fn held() -> Vec<Request> {
    let schema = json!({"type": "object", "required": ["name", "age"], "properties": {
        "name": {"enum": ANIMALS}, "age": {"type": "integer", "minimum": 1, "maximum": 99},
    }});
    let city = json!({"city": {"type": "string", "description": "The name of the city."}});
    let parameters = json!({"type": "object", "properties": city, "required": ["city"]});
    let weather = json!({"type": "function", "function": {
        "name": "get_weather", "description": "Get the current weather in a city.",
        "parameters": parameters,
    }});
    let request = |i: usize| match i % 4 {
        0 => story(i).grammar(Grammar::Regex("(the fox and the bear, ){5}the end".into())),
        1 => story(i).grammar(Grammar::JsonSchema(schema.clone())),
        2 => story(i).grammar(Grammar::Regex("[A-Z][a-z]+( [a-z]+){3,12}\\.".into())),
        _ => ask(format!("What is the weather in {}?", ["Paris", "Oslo", "Cairo"][i / 4 % 3]))
            .tools(vec![weather.clone()]),
    };
    let drawn = |i: usize| request(i).temperature([0.0, 1.0][i / 4 % 2]).seed(i as u64);
    (0..40).map(drawn).collect()
}

/// 40 prompts, whose answers end at words that come early, late, in two tokens or never.
fn stopped() -> Vec<Request> {
    let words = ["was", "lived near", ". ", "zebra!", "in a", "named"];
    let stop = |i: usize| vec![words[i % words.len()].to_string(), "the end".to_string()];
    (0..40).map(|i| story(i).stop(stop(i)).temperature([0.0, 0.7][i % 2]).seed(i as u64)).collect()
}

/// 30 prompts. Pebble never learnt to think: what it writes is its thought until a budget ends it.
fn thinking() -> Vec<Request> {
    let budget = |i: usize| [6, 12, 24][i % 3];
    let request = |i: usize| story(i).thinking_budget(budget(i)).temperature([0.0, 0.7][i % 2]);
    (0..30).map(|i| request(i).seed(i as u64)).collect()
}

/// 30 prompts that are short to answer.
fn short() -> Vec<Request> {
    let request = |i: usize| match i % 3 {
        0 => ask(format!("What is {} + {}?", 13 + i, 50 - i)),
        1 => ask(format!("Spell {}.", ANIMALS[i % ANIMALS.len()])),
        _ => Request::text("One fox, two foxes. One fox, two foxes. One fox,")
            .max_tokens(30)
            .tokens(),
    };
    (0..30).map(|i| request(i).temperature([0.0, 0.5][i % 2]).seed(i as u64)).collect()
}

#[test]
fn greedy_stories_are_the_same() {
    let [_, drafter] = same("cpu", &greedy(), 4).unwrap();
    // Most of a story is guessed.
    assert!(drafter > 60 * 40 / 2, "{drafter}");
}

#[test]
fn drawn_stories_are_the_same_with_every_seed() {
    let [_, drafter] = same("cpu", &drawn(), 5).unwrap();
    assert!(drafter > 100 * 40 / 3, "{drafter}");
}

#[test]
fn answers_that_grammars_hold_are_the_same() {
    let [lookup, drafter] = same("cpu", &held(), 4).unwrap();
    assert!(lookup > 20 && drafter > 20, "{lookup}, {drafter}");
}

#[test]
fn answers_that_end_at_stop_strings_are_the_same() {
    let [_, drafter] = same("cpu", &stopped(), 4).unwrap();
    assert!(drafter > 200, "{drafter}");
}

#[test]
fn answers_after_thoughts_are_the_same() {
    let [_, drafter] = same("cpu", &thinking(), 4).unwrap();
    assert!(drafter > 100, "{drafter}");
}

#[test]
fn short_answers_are_the_same() {
    let [lookup, drafter] = same("cpu", &short(), 3).unwrap();
    assert!(lookup > 20 && drafter > 20, "{lookup}, {drafter}");
}

/// A few of each kind.
fn few(per_kind: usize) -> Vec<Request> {
    [greedy(), drawn(), held(), stopped(), thinking(), short()]
        .into_iter()
        .flat_map(|kind| kind.into_iter().take(per_kind).map(|r| r.max_tokens(16)))
        .collect()
}

#[test]
fn a_few_of_every_kind_are_the_same_on_the_reference() {
    let [_, drafter] = same("reference", &few(4), 6).unwrap();
    assert!(drafter > 20, "{drafter}");
}

#[test]
fn a_few_of_every_kind_are_the_same_on_a_gpu() {
    if let Some([_, drafter]) = same("vulkan", &few(4), 6) {
        assert!(drafter > 20, "{drafter}");
    }
}

/// What the drafter is worth on stories that it was not taught: tokens that a call gives, beside the
/// one that it gives anyway.
#[test]
fn two_guesses_of_a_call_are_right_on_held_out_stories() {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pebble/heldout/mixed.jsonl");
    let items = lapidary_heldout::read(&path).unwrap();
    let stories = items.into_iter().filter(|item| item.kind == "story");
    let engine = engine("cpu", Draft::Model).unwrap();
    let (mut calls, mut accepted) = (0, 0);
    for item in stories {
        let prompt = lapidary_heldout::prompt(&engine, &item, &|name| std::fs::read(name)).unwrap();
        let request = Request::of_prompt(prompt).max_tokens(200).temperature(0.5).seed(7);
        let reply = together(&engine, &[request]).remove(0);
        let stats = &finish(&reply).stats;
        calls += stats.draft_calls;
        accepted += stats.accepted_tokens;
    }
    assert!(calls > 100, "{calls}");
    let rate = accepted as f64 / calls as f64;
    println!("{accepted} right guesses in {calls} calls: {rate:.2} a call");
    assert!(rate >= 2.0, "{accepted} in {calls}");
}
