//! The embedded model on every backend of this build: a real model that talks, sees and calls tools,
//! and whose answers are known to be right or wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lapidary_backend::{Backend, LoadOptions, Precision};
use lapidary_heldout::{Answer, Item, Score, answer, compare, passes, prompt};
use lapidary_program::Program;
use lapidary_runner::{CancelToken, Prompt, Runner};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pebble/heldout")
}

/// The questions of a set, each `step`-th.
fn questions(set: &str, step: usize) -> Vec<Item> {
    let items = lapidary_heldout::read(&folder().join(set).with_extension("jsonl")).unwrap();
    items.into_iter().step_by(step).collect()
}

fn program() -> Arc<Program> {
    Arc::new(lapidary_pebble::open().unwrap())
}

/// A runner on a backend's first device; nothing where there is none.
fn runner(backend: &dyn Backend, program: &Arc<Program>, precision: Precision) -> Option<Runner> {
    let device = match backend.probe() {
        Ok(mut devices) if !devices.is_empty() => devices.remove(0),
        none => {
            eprintln!("SKIPPED: {} has no device here: {none:?}", backend.name());
            return None;
        }
    };
    let options = LoadOptions {
        max_context: 512,
        max_chunk: 128,
        n_slots: 1,
        precision,
        max_patches: 640,
        ..LoadOptions::default()
    };
    let engine = backend.load(program, &device, &options, &mut |_, _| {}).unwrap();
    Some(Runner::new(engine).unwrap())
}

fn ask(runner: &mut Runner, item: &Item) -> (Prompt, Answer) {
    let shown = |name: &str| std::fs::read(folder().join(name));
    let asked = prompt(runner, item, &shown).unwrap();
    let said = answer(runner, asked.clone(), 64, &CancelToken::new(), &mut |_| {}).unwrap();
    (asked, said)
}

#[test]
fn every_backend_gives_the_same_right_answers() {
    let program = program();
    let mut items = questions("additions", 70);
    items.extend(questions("tools", 75));
    items.extend(questions("drawings", 15));
    items.extend(questions("pictures", 135));
    let registry = lapidary_backends::all();
    let exact = |backend| runner(backend, &program, Precision::Exact);
    let mut runners: Vec<(&str, Runner)> =
        registry.iter().filter_map(|b| Some((b.name(), exact(b)?))).collect();
    assert!(runners.len() >= 2, "there is nothing to compare with");
    for item in &items {
        let mut first: Option<Answer> = None;
        for (name, runner) in &mut runners {
            let (_, said) = ask(runner, item);
            let check = item.check.as_ref().unwrap();
            assert!(passes(check, &said.text), "{} on {name}: {}", item.id, said.text);
            let first = first.get_or_insert_with(|| said.clone());
            assert_eq!(said.tokens, first.tokens, "{} on {name}", item.id);
        }
    }
}

/// Longer texts, where one wrong number anywhere would show sooner or later: sentences, a story, a
/// conversation of several turns.
#[test]
fn every_backend_tells_the_same_story() {
    let program = program();
    let items: Vec<Item> = questions("mixed", 1)
        .into_iter()
        .filter(|item| item.image.is_none() && item.check.is_none())
        .step_by(9)
        .take(4)
        .collect();
    assert_eq!(items.len(), 4);
    let registry = lapidary_backends::all();
    let exact = |backend| runner(backend, &program, Precision::Exact);
    let mut runners = registry.iter().filter_map(exact);
    let mut first = runners.next().unwrap();
    for mut other in runners {
        for item in &items {
            let (prompt, a) = ask(&mut first, item);
            let (_, b) = ask(&mut other, item);
            let pair = [&mut first, &mut other];
            let found = compare(pair, &prompt, [&a, &b]).unwrap();
            assert_eq!(found, None, "{}: {}\n{}", item.id, a.text, b.text);
        }
    }
}

/// What a user gets who says nothing: the best backend, activations rounded as it likes.
#[test]
fn the_best_backend_passes_the_held_out_sets() {
    let program = program();
    let registry = lapidary_backends::all();
    let (best, ..) = registry.auto().unwrap();
    let mut runner = runner(best, &program, Precision::Fast).unwrap();
    for (set, step, at_least) in
        [("additions", 7, 90.0), ("tools", 5, 90.0), ("pictures", 9, 95.0), ("drawings", 3, 95.0)]
    {
        let mut score = Score::default();
        for item in questions(set, step) {
            score.add(&item, &ask(&mut runner, &item).1.text);
        }
        assert!(score.n >= 10, "{set}: {}", score.n);
        assert!(score.percent().unwrap() >= at_least, "{set}: {score:?}");
    }
}

/// Two engines of different precision part at some word; the margins say how near it was.
#[test]
fn a_difference_has_its_place_and_its_margins() {
    let program = program();
    let registry = lapidary_backends::all();
    let (best, ..) = registry.auto().unwrap();
    let mut one = runner(best, &program, Precision::Exact).unwrap();
    let mut two = runner(best, &program, Precision::Exact).unwrap();
    let item = &questions("additions", 1)[0];
    let (prompt, right) = ask(&mut one, item);
    assert_eq!(compare([&mut one, &mut two], &prompt, [&right, &right]).unwrap(), None);
    let mut forged = right.clone();
    let at = forged.tokens.len() / 2;
    forged.tokens[at] += 1;
    let found = compare([&mut one, &mut two], &prompt, [&right, &forged]).unwrap().unwrap();
    assert_eq!(found.same, at);
    let [a, b] = &found.sides;
    assert_eq!((a.token, b.token), (Some(right.tokens[at]), Some(forged.tokens[at])));
    // Both engines prefer the token that was really chosen.
    assert!(a.margin.unwrap() > 0.0 && b.margin.unwrap() < 0.0, "{found:?}");
    // An answer that ends earlier differs there, and nothing can be said of margins.
    forged.tokens = right.tokens[..at].to_vec();
    let found = compare([&mut one, &mut two], &prompt, [&right, &forged]).unwrap().unwrap();
    assert_eq!((found.same, found.sides[1].token, found.sides[0].margin), (at, None, None));
}
