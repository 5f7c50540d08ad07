//! Many sequences at once: all end as they would alone, in time, and give back what they took.

use std::collections::BTreeMap;
use std::time::Duration;

use lapidary_backend::PAGE;
use lapidary_runner::{
    CancelToken, Event, FinishReason, GenerationId, Request, Runner, RunnerOptions,
};

use crate::ask::{Answer, Fresh, assert_same, request, runner, text, together};
use crate::engines::{Kind, On, Room, WorkCost};

/// More sequences than there are pages for.
pub fn a_crowd(on: &On) {
    let sizes = on.sizes;
    // Each has two pages in the end, and one in the beginning.
    let prompt = |i: usize| {
        let own = PAGE - sizes.answer / 2 - i % 4 - sizes.common;
        [text(sizes.common, 0), text(own, i as u32 + 1)].concat()
    };
    let pages = Some(2 * sizes.room_for as u32);
    let context = 3 * PAGE;
    let room = Room { context, chunk: 128, sequences: sizes.crowd as u32, pages };
    let (mut runner, meter) = runner(on, room);
    let requests: Vec<Request> =
        (0..sizes.crowd).map(|i| request(&prompt(i), sizes.answer, i as u64)).collect();
    let answers = together(&mut runner, &requests);
    assert!(runner.n_preempted() > 0, "there were pages for all");
    assert!(answers.iter().all(|answer| answer.tokens.len() == sizes.answer));
    let mut fresh = Fresh::new(on, context);
    for (i, got) in answers.iter().enumerate().step_by(sizes.check_each) {
        fresh.check(requests[i].clone(), got, &format!("sequence {i}"));
    }
    assert_eq!(meter.stale(), 0);
    assert_all_free(&mut runner, pages);
}

/// Nothing is held, and what is only kept can be given up.
fn assert_all_free(runner: &mut Runner, pages: Option<u32>) {
    assert_eq!(runner.n_generations(), 0);
    assert_eq!(runner.pages_in_use().0, 0);
    runner.forget();
    let free = runner.free_pages();
    assert!(free.iter().all(|n| Some(*n) == pages), "{free:?} of {pages:?}");
}

/// The time between two tokens of running answers stays under twice the bound while a long prompt is
/// run. Time is that of the counted work: of each call, of each token, and of each key that it sees.
pub fn time(on: &On) {
    let micros = Duration::from_micros;
    let costs = [(20_000, 500, 50), (1_000, 2_000, 0), (60_000, 50, 5)];
    let costs = costs.map(|(call, token, keys)| WorkCost {
        call: micros(call),
        token: micros(token),
        thousand_keys: micros(keys),
    });
    // The first is enough for engines that take their time themselves.
    let n = if matches!(on.kind, Kind::Mock) { 3 } else { 1 };
    for cost in costs.into_iter().take(n) {
        let long = on.sizes.long;
        let context = long + 2 * PAGE;
        let pages = Some((context / PAGE + 7 * 3) as u32);
        let room = Room { context, chunk: 1024, sequences: 8, pages };
        let (mut runner, meter) = runner(on, room);
        meter.counts().cost = cost;
        let cancel = CancelToken::new();
        let submit = |runner: &mut Runner, prompt: &[u32], max_new| {
            runner.submit(request(prompt, max_new, 1), &cancel).unwrap()
        };
        let answers: Vec<GenerationId> =
            (0..7).map(|i| submit(&mut runner, &text(10, i), 256)).collect();
        let mut last: BTreeMap<GenerationId, Duration> = BTreeMap::new();
        let mut longest = Duration::ZERO;
        let mut arrived = None;
        let mut done = false;
        for step in 0.. {
            if step == on.sizes.arrives {
                arrived = Some(submit(&mut runner, &text(long, 9), 1));
            }
            runner.step(&mut |id, event| match event {
                Event::Token { .. } if answers.contains(&id) => {
                    let now = meter.clock.now();
                    let before = last.insert(id, now);
                    longest = longest.max(before.map_or(Duration::ZERO, |before| now - before));
                }
                Event::Finished(_) => {
                    assert!(!answers.contains(&id), "an answer ended before the prompt was run");
                    done |= Some(id) == arrived;
                }
                _ => {}
            });
            if done {
                break;
            }
        }
        let bound = RunnerOptions::default().between_tokens;
        assert!(longest < 2 * bound, "{longest:?} with {cost:?}");
        // The time that there is gets used.
        let most = meter.counts().calls.iter().skip(on.sizes.arrives).copied().max().unwrap();
        let room = (bound - cost.call).as_secs_f64() / cost.token.as_secs_f64();
        assert!(most as f64 > 0.6 * room.min(long.min(1024) as f64), "{most} of {room}");
        cancel.cancel();
        while runner.step(&mut |_, _| {}) {}
        assert_all_free(&mut runner, pages);
    }
}

/// What a plain map knows of a generation.
struct Known {
    text: Text,
    max_new: usize,
    got: Answer,
    cancel: CancelToken,
}

/// A prompt: its number and its length.
type Text = (u32, usize);

/// Submits, cancels and steps in any order, beside a map that knows what each generation should say.
pub fn cancelled(on: &On) {
    const CONTEXT: usize = 500;
    let (new, lengths) = (on.sizes.answer, on.sizes.lengths);
    let pages = Some(12);
    let room = Room { context: CONTEXT, chunk: 64, sequences: 4, pages };
    let (mut runner, meter) = runner(on, room);
    let mut fresh = Fresh::new(on, CONTEXT);
    let mut answers: BTreeMap<Text, Answer> = BTreeMap::new();
    let mut known: BTreeMap<GenerationId, Known> = BTreeMap::new();
    let mut seed = 1u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % n
    };
    let (mut finished, mut cancelled) = (0, 0);
    for operation in 0.. {
        let ends = operation >= on.sizes.operations;
        if ends && known.is_empty() {
            break;
        }
        match random(12) {
            0..=2 if !ends && known.len() < 12 => {
                let text @ (which, n) = (random(3) as u32, lengths[random(lengths.len())]);
                let prompt = crate::ask::text(n, which);
                let seed = u64::from(which);
                answers.entry(text).or_insert_with(|| fresh.answer(request(&prompt, new, seed)));
                let (max_new, cancel) = (1 + random(new), CancelToken::new());
                let id = runner.submit(request(&prompt, max_new, seed), &cancel).unwrap();
                known.insert(id, Known { text, max_new, got: Answer::default(), cancel });
            }
            3 if !known.is_empty() => {
                known.values().nth(random(known.len())).unwrap().cancel.cancel();
            }
            4 if operation % 50 == 0 => runner.forget(),
            _ => {
                runner.step(&mut |id, event| {
                    let one = known.get_mut(&id).expect("it was submitted and has not ended");
                    one.got.add(&event);
                    let Event::Finished(finish) = event else { return };
                    let one = known.remove(&id).unwrap();
                    let was = one.cancel.is_cancelled();
                    match finish.reason {
                        FinishReason::Cancelled => assert!(was, "nobody cancelled it"),
                        reason => {
                            assert_eq!(reason, FinishReason::Length);
                            assert_eq!(one.got.tokens.len(), one.max_new);
                        }
                    }
                    *(if was { &mut cancelled } else { &mut finished }) += 1;
                    let mut wanted = answers[&one.text].clone();
                    wanted.tokens.truncate(one.got.tokens.len());
                    assert_same(&one.got, &wanted, on.tolerance, "in any company");
                });
            }
        }
        assert_eq!(runner.n_generations(), known.len());
    }
    assert!(finished > 0 && cancelled > 0, "{finished} finished, {cancelled} were cancelled");
    assert_eq!(meter.stale(), 0);
    assert_all_free(&mut runner, pages);
}
