//! The embedded model on every backend of this build: a real model that talks, sees and calls tools,
//! and whose answers are known to be right or wrong.

use std::path::{Path, PathBuf};

use lapidary::{Engine, ErrorCode, Load, Model, Precision, Prompt};
use lapidary_heldout::{Answer, Item, Score, answer, compare, passes, prompt};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pebble/heldout")
}

/// The questions of a set, each `step`-th.
fn questions(set: &str, step: usize) -> Vec<Item> {
    let items = lapidary_heldout::read(&folder().join(set).with_extension("jsonl")).unwrap();
    items.into_iter().step_by(step).collect()
}

/// The names of all backends, best first.
fn backends() -> Vec<&'static str> {
    lapidary::devices().iter().map(|backend| backend.name).collect()
}

/// An engine on a backend's first device, `auto` for the best; nothing where there is none.
fn engine(backend: &str, precision: Precision) -> Option<Engine> {
    let load = Load::default().backend(backend).precision(precision);
    let load = load.context(512).chunk(128).sequences(1).pack_cache(None);
    match Model::pebble().unwrap().load(load) {
        Ok(engine) => Some(engine),
        Err(e) if e.code() == ErrorCode::Device => {
            eprintln!("SKIPPED: {backend} has no device here: {e}");
            None
        }
        Err(e) => panic!("{backend}: {e}"),
    }
}

fn ask(engine: &Engine, item: &Item) -> (Prompt, Answer) {
    let shown = |name: &str| std::fs::read(folder().join(name));
    let asked = prompt(engine, item, &shown).unwrap();
    let said = answer(engine, asked.clone(), 64, &mut |_| {}).unwrap();
    (asked, said)
}

#[test]
fn every_backend_gives_the_same_right_answers() {
    let mut items = questions("additions", 70);
    items.extend(questions("tools", 75));
    items.extend(questions("drawings", 15));
    items.extend(questions("pictures", 135));
    let exact = |name: &'static str| Some((name, engine(name, Precision::Exact)?));
    let engines: Vec<(&str, Engine)> = backends().into_iter().filter_map(exact).collect();
    assert!(engines.len() >= 2, "there is nothing to compare with");
    for item in &items {
        let mut first: Option<Answer> = None;
        for (name, engine) in &engines {
            let (_, said) = ask(engine, item);
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
    let items: Vec<Item> = questions("mixed", 1)
        .into_iter()
        .filter(|item| item.image.is_none() && item.check.is_none())
        .step_by(9)
        .take(4)
        .collect();
    assert_eq!(items.len(), 4);
    let mut engines = backends().into_iter().filter_map(|name| engine(name, Precision::Exact));
    let first = engines.next().unwrap();
    for other in engines {
        for item in &items {
            let (prompt, a) = ask(&first, item);
            let (_, b) = ask(&other, item);
            let pair = [&first, &other];
            let found = compare(pair, &prompt, [&a, &b]).unwrap();
            assert_eq!(found, None, "{}: {}\n{}", item.id, a.text, b.text);
        }
    }
}

/// What a user gets who says nothing: the best backend, activations rounded as it likes.
#[test]
fn the_best_backend_passes_the_held_out_sets() {
    let best = engine("auto", Precision::Fast).unwrap();
    for (set, step, at_least) in
        [("additions", 7, 90.0), ("tools", 5, 90.0), ("pictures", 9, 95.0), ("drawings", 3, 95.0)]
    {
        let mut score = Score::default();
        for item in questions(set, step) {
            score.add(&item, &ask(&best, &item).1.text);
        }
        assert!(score.n >= 10, "{set}: {}", score.n);
        assert!(score.percent().unwrap() >= at_least, "{set}: {score:?}");
    }
}

/// Two engines of different precision part at some word; the margins say how near it was.
#[test]
fn a_difference_has_its_place_and_its_margins() {
    let one = engine("auto", Precision::Exact).unwrap();
    let two = engine("auto", Precision::Exact).unwrap();
    let item = &questions("additions", 1)[0];
    let (prompt, right) = ask(&one, item);
    assert_eq!(compare([&one, &two], &prompt, [&right, &right]).unwrap(), None);
    let mut forged = right.clone();
    let at = forged.tokens.len() / 2;
    forged.tokens[at] += 1;
    let found = compare([&one, &two], &prompt, [&right, &forged]).unwrap().unwrap();
    assert_eq!(found.same, at);
    let [a, b] = &found.sides;
    assert_eq!((a.token, b.token), (Some(right.tokens[at]), Some(forged.tokens[at])));
    // Both engines prefer the token that was really chosen.
    assert!(a.margin.unwrap() > 0.0 && b.margin.unwrap() < 0.0, "{found:?}");
    // An answer that ends earlier differs there, and nothing can be said of margins.
    forged.tokens = right.tokens[..at].to_vec();
    let found = compare([&one, &two], &prompt, [&right, &forged]).unwrap().unwrap();
    assert_eq!((found.same, found.sides[1].token, found.sides[0].margin), (at, None, None));
}
