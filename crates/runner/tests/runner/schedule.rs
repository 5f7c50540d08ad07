//! Many requests at once equal the same requests one by one.

use std::collections::BTreeMap;

use crate::mock::{Fault, Mock};
use lapidary_backend::LoadOptions;
use lapidary_runner::{
    CancelToken, Error, Event, FinishReason, GenerationId, Request, Runner, SamplingParams,
};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Job {
    prompt: Vec<u32>,
    max_new: usize,
    params: SamplingParams,
    /// The step before which it arrives.
    arrives: usize,
    /// It is cancelled when it has given so many tokens.
    cancel_after: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    reason: Option<FinishReason>,
    failed: bool,
}

fn request(job: &Job) -> Request {
    Request { max_new: job.max_new, ..Request::new(job.prompt.clone(), job.params.clone()) }
}

/// Each in a runner of its own.
fn alone(mock: &Mock, job: &Job) -> Outcome {
    let log = Default::default();
    let options = LoadOptions { n_slots: 1, ..mock.options.clone() };
    let mut runner = Runner::new(Mock { options, log, ..mock.clone() }.engine()).unwrap();
    let cancel = CancelToken::new();
    let mut outcome = Outcome::default();
    let finish = runner.generate(request(job), &cancel, |event| {
        if let Event::Token { id } = event {
            outcome.tokens.push(id);
            if Some(outcome.tokens.len()) == job.cancel_after {
                cancel.cancel();
            }
        }
    });
    outcome.reason = Some(finish.unwrap().reason);
    outcome
}

/// All in one runner, as they arrive.
fn together(runner: &mut Runner, jobs: &[Job]) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::default(); jobs.len()];
    let mut names: BTreeMap<GenerationId, usize> = BTreeMap::new();
    let cancels: Vec<CancelToken> = jobs.iter().map(|_| CancelToken::new()).collect();
    let last = jobs.iter().map(|j| j.arrives).max().unwrap_or(0);
    for step in 0.. {
        for (i, job) in jobs.iter().enumerate().filter(|(_, j)| j.arrives == step) {
            names.insert(runner.submit(request(job), &cancels[i]).unwrap(), i);
        }
        let more = runner.step(&mut |name, event| {
            let i = names[&name];
            let outcome = &mut outcomes[i];
            assert!(outcome.reason.is_none() && !outcome.failed, "an event after the end");
            match event {
                Event::Token { id } => {
                    outcome.tokens.push(id);
                    if Some(outcome.tokens.len()) == jobs[i].cancel_after {
                        cancels[i].cancel();
                    }
                }
                Event::Text { .. } => {}
                Event::Finished(finish) => outcome.reason = Some(finish.reason),
                Event::Failed(_) => outcome.failed = true,
            }
        });
        if !more && step >= last {
            return outcomes;
        }
        assert!(step < 10_000, "no end");
    }
    outcomes
}

/// Prompts over few tokens, so that they share prefixes.
fn job() -> impl Strategy<Value = Job> {
    let params = prop_oneof![
        Just(SamplingParams::greedy()),
        (any::<u64>(), 0u32..30, 0.1f32..=1.0).prop_map(|(seed, top_k, top_p)| SamplingParams {
            seed: Some(seed),
            top_k,
            top_p,
            repetition_penalty: 1.2,
            frequency_penalty: 0.5,
            ..SamplingParams::default()
        }),
    ];
    let prompt = prop::collection::vec(1u32..3, 1..40);
    let cancel_after = prop::option::weighted(0.3, 1usize..8);
    (prompt, 1usize..20, params, 0usize..12, cancel_after).prop_map(
        |(prompt, max_new, params, arrives, cancel_after)| Job {
            prompt,
            max_new,
            params,
            arrives,
            cancel_after,
        },
    )
}

fn mock() -> impl Strategy<Value = Mock> {
    let windows = prop_oneof![
        Just(vec![None]),
        Just(vec![Some(4), None]),
        Just(vec![Some(1), Some(7)]),
        Just(vec![Some(3)]),
    ];
    (windows, 1u32..9, 1u32..9, 1u32..5, prop::option::of(0u32..48)).prop_map(
        |(windows, method_chunk, max_chunk, n_slots, eos)| Mock {
            windows,
            method_chunk,
            options: LoadOptions {
                max_context: 64,
                max_chunk,
                n_slots,
                threads: None,
                ..LoadOptions::default()
            },
            eos_ids: eos.into_iter().collect(),
            ..Mock::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn together_is_as_alone(mock in mock(), jobs in prop::collection::vec(job(), 1..10)) {
        let mut runner = Runner::new(mock.engine()).unwrap();
        let outcomes = together(&mut runner, &jobs);
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            prop_assert_eq!(outcome, &alone(&mock, job));
        }
        let limit = mock.options.max_chunk.max(mock.options.n_slots) as usize;
        prop_assert!(mock.log.lock().unwrap().calls.iter().all(|n| (1..=limit).contains(n)));
        prop_assert_eq!(runner.n_generations(), 0);
    }

    /// The mock checks every key of every query, so this is the test of the ring rule at work.
    #[test]
    fn turns_reuse_what_they_can_and_nothing_else(
        mock in mock(),
        turns in prop::collection::vec((0usize..50, prop::collection::vec(1u32..3, 1..12)), 1..12),
    ) {
        let mut runner = Runner::new(mock.engine()).unwrap();
        let mut history: Vec<u32> = vec![];
        for (keep, new) in turns {
            history.truncate(keep);
            history.extend(new);
            let params = SamplingParams::greedy();
            let job = Job {
                prompt: history.clone(),
                max_new: 3,
                params,
                arrives: 0,
                cancel_after: None,
            };
            let outcome = together(&mut runner, std::slice::from_ref(&job)).remove(0);
            prop_assert_eq!(&outcome, &alone(&mock, &job));
            history.extend(outcome.tokens);
        }
    }

    #[test]
    fn a_fault_ends_what_was_in_the_call_and_nothing_else(
        jobs in prop::collection::vec(job(), 1..8),
        call in 0usize..20,
        fault in prop_oneof![Just(Fault::Error), Just(Fault::Nan)],
    ) {
        let options = LoadOptions { max_context: 64, max_chunk: 8, n_slots: 3, threads: None, ..LoadOptions::default() };
        let mock = Mock { options, ..Mock::default() };
        mock.log.lock().unwrap().faults.insert(call, fault);
        let mut runner = Runner::new(mock.engine()).unwrap();
        let outcomes = together(&mut runner, &jobs);
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            let alone = alone(&mock, job);
            if outcome.failed {
                prop_assert!(alone.tokens.starts_with(&outcome.tokens));
            } else {
                prop_assert_eq!(outcome, &alone);
            }
        }
        let failed = outcomes.iter().filter(|o| o.failed).count();
        // Non-finite logits end one answer; a failed call ends all that were in it.
        let most = if fault == Fault::Nan { 1 } else { 3 };
        prop_assert!(failed <= most);
        mock.log.lock().unwrap().faults.clear();
        let again = together(&mut runner, &jobs);
        for (job, outcome) in jobs.iter().zip(&again) {
            prop_assert_eq!(outcome, &alone(&mock, job));
        }
    }
}

#[test]
fn answers_do_not_wait_for_long_prompts() {
    let options = LoadOptions {
        max_context: 64,
        max_chunk: 8,
        n_slots: 2,
        threads: None,
        ..LoadOptions::default()
    };
    let mock = Mock { options, ..Mock::default() };
    let mut runner = Runner::new(mock.engine()).unwrap();
    let cancel = CancelToken::new();
    let greedy = |prompt: Vec<u32>, max_new| Request {
        max_new,
        ..Request::new(prompt, SamplingParams::greedy())
    };
    let first = runner.submit(greedy(vec![1, 2], 10), &cancel).unwrap();
    let mut tokens = 0;
    let mut step = |runner: &mut Runner| {
        runner.step(&mut |name, event| {
            if let Event::Token { .. } = event
                && name == first
            {
                tokens += 1;
            }
        });
    };
    step(&mut runner);
    runner.submit(greedy((0..40).collect(), 1), &cancel).unwrap();
    for _ in 0..6 {
        step(&mut runner);
    }
    assert_eq!(tokens, 7, "one token of the answer in every step");
    // One token of the answer and seven of the prompt fill each call.
    assert_eq!(mock.log.lock().unwrap().calls[1..6], [8, 8, 8, 8, 8]);
}

#[test]
fn a_conversation_goes_back_to_the_slot_that_knows_it() {
    let options = LoadOptions {
        max_context: 64,
        max_chunk: 8,
        n_slots: 3,
        threads: None,
        ..LoadOptions::default()
    };
    let mock = Mock { options, windows: vec![None], ..Mock::default() };
    let mut runner = Runner::new(mock.engine()).unwrap();
    let cancel = CancelToken::new();
    let mut reused = |prompt: &[u32]| {
        let request =
            Request { max_new: 1, ..Request::new(prompt.to_vec(), SamplingParams::greedy()) };
        runner.generate(request, &cancel, |_| {}).unwrap().stats.reused_tokens
    };
    let talk = |who: u32, n: usize| {
        let mut tokens = vec![2];
        tokens.extend(std::iter::repeat_n(who, n));
        tokens
    };
    // Three conversations that share their first token only: each gets a slot of its own.
    for who in [10, 11, 12] {
        assert!(reused(&talk(who, 10)) <= 1);
    }
    for who in [12, 10, 11] {
        assert_eq!(reused(&talk(who, 15)), 11);
    }
    // A fourth takes the slot that was not used for longest.
    assert_eq!(reused(&talk(13, 10)), 1);
    assert_eq!(reused(&talk(10, 20)), 16);
    assert_eq!(reused(&talk(11, 20)), 16);
    assert!(reused(&talk(12, 20)) <= 1);
}

#[test]
fn a_busy_runner_says_so() {
    let mut runner = Runner::new(Mock::default().engine()).unwrap();
    let cancel = CancelToken::new();
    let request = || Request::new(vec![1], SamplingParams::greedy());
    runner.submit(request(), &cancel).unwrap();
    let e = runner.generate(request(), &cancel, |_| {}).unwrap_err();
    assert!(matches!(e, Error::Busy { active: 1 }));
    assert!(matches!(runner.greedy(&[1], 1), Err(Error::Busy { active: 1 })));
    // A request that is cancelled while it waits is told so, and never runs.
    let waiting = CancelToken::new();
    let second = runner.submit(request(), &waiting).unwrap();
    waiting.cancel();
    let mut ended = vec![];
    runner.step(&mut |name, event| {
        if let Event::Finished(finish) = event {
            ended.push((name, finish.reason));
        }
    });
    assert_eq!(ended, [(second, FinishReason::Cancelled)]);
}
