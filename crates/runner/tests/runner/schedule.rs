//! Many requests at once equal the same requests one by one. More of this, on real engines as well,
//! is in `conformance/tests/sharing`.

use lapidary_backend::Abilities;
use lapidary_mock_engine::{Fault, Mock};
use lapidary_runner::{CancelToken, Error, Event, FinishReason, Request, Runner, SamplingParams};
use proptest::prelude::*;

use crate::{Job, alone, greedy, text, together};

/// Prompts of few pieces, so that they share prefixes of all lengths.
pub(crate) fn job() -> impl Strategy<Value = Job> {
    let params = prop_oneof![
        2 => Just(SamplingParams::greedy()),
        2 => (any::<u64>(), 1u32..30).prop_map(|(seed, top_k)| SamplingParams {
            seed: Some(seed),
            top_k,
            ..SamplingParams::default()
        }),
        1 => (any::<u64>(), 0u32..30, 0.1f32..=1.0).prop_map(|(seed, top_k, top_p)| SamplingParams {
            seed: Some(seed),
            top_k,
            top_p,
            repetition_penalty: 1.2,
            frequency_penalty: 0.5,
            ..SamplingParams::default()
        }),
    ];
    let pieces =
        prop::collection::vec((0u32..3, prop::sample::select(vec![1usize, 30, 100, 128])), 1..4);
    let tail = prop::collection::vec(1u32..3, 1..10);
    let cancel_after = prop::option::weighted(0.3, 1usize..8);
    (pieces, tail, 1usize..20, params, 0usize..12, cancel_after).prop_map(
        |(pieces, tail, max_new, params, arrives, cancel_after)| {
            let pieces = pieces.into_iter().flat_map(|(which, n)| text(n, which));
            let prompt = pieces.chain(tail).collect();
            Job { prompt, max_new, params, arrives, cancel_after }
        },
    )
}

/// Engines of all kinds, with pages for few.
pub(crate) fn mock() -> impl Strategy<Value = Mock> {
    let windows = prop::sample::select(vec![
        vec![None],
        vec![Some(4), None],
        vec![Some(1), Some(140)],
        vec![Some(50), None, Some(300)],
        vec![Some(3)],
    ]);
    let chunk = prop::sample::select(vec![1u32, 7, 64, 200]);
    let eos = prop::option::of(0u32..48);
    let draws = (1usize..4, any::<bool>(), prop::sample::select(vec![0usize, 1, 3]));
    (windows, chunk, 1u32..6, 4u32..12, eos, draws, 0usize..3).prop_map(
        |(
            windows,
            chunk,
            n_sequences,
            pages,
            eos,
            (max_in_flight, prefers_top_k, wrong),
            polls,
        )| {
            let mock = Mock {
                windows,
                method_chunk: 200,
                eos_ids: eos.into_iter().collect(),
                abilities: Abilities { max_top_k: 64, prefers_top_k, max_in_flight },
                wrong_draws: wrong,
                polls,
                ..Mock::default()
            };
            mock.sized(500, chunk, n_sequences).with_pages(pages)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn together_is_as_alone(mock in mock(), jobs in prop::collection::vec(job(), 1..10)) {
        let mut runner = Runner::new(mock.engine()).unwrap();
        let outcomes = together(&mut runner, &jobs);
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            prop_assert_eq!(outcome, &alone(&mock, job));
        }
        let limit = mock.options.limits.tokens as usize;
        let log = mock.log();
        prop_assert!(log.calls.iter().all(|n| (1..=limit).contains(n)));
        prop_assert!(log.in_flight <= mock.abilities.max_in_flight.min(2));
        prop_assert_eq!(log.stale, 0);
        prop_assert_eq!(runner.n_generations(), 0);
    }

    #[test]
    fn turns_reuse_what_they_can_and_nothing_else(
        mock in mock(),
        turns in prop::collection::vec((0usize..400, 0u32..3, 1usize..120), 1..12),
    ) {
        let mut runner = Runner::new(mock.engine()).unwrap();
        let mut history: Vec<u32> = vec![];
        for (keep, which, n) in turns {
            history.truncate(keep);
            history.extend(text(n, which));
            history.truncate(450);
            let job = Job::greedy(history.clone(), 3);
            let outcome = together(&mut runner, std::slice::from_ref(&job)).remove(0);
            prop_assert_eq!(&outcome, &alone(&mock, &job));
            history.extend(outcome.tokens);
        }
        prop_assert_eq!(mock.log().stale, 0);
    }

    #[test]
    fn a_fault_ends_what_was_in_the_call_and_nothing_else(
        mock in mock(),
        jobs in prop::collection::vec(job(), 1..8),
        call in 0usize..20,
        fault in prop::sample::select(vec![Fault::Error, Fault::LateError, Fault::Nan, Fault::Panic]),
    ) {
        mock.fail(call, fault);
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
        let most = if fault == Fault::Nan { 1 } else { mock.options.n_sequences as usize };
        prop_assert!(failed <= most);
        mock.faults.lock().unwrap().clear();
        let again = together(&mut runner, &jobs);
        for (job, outcome) in jobs.iter().zip(&again) {
            prop_assert_eq!(outcome, &alone(&mock, job));
        }
    }
}

#[test]
fn one_that_fills_all_pages_alone_finishes() {
    for windows in [vec![None], vec![None, Some(100)], vec![Some(100)]] {
        let mock = Mock { windows, ..Mock::default() }.sized(512, 64, 4).with_pages(4);
        let mut runner = Runner::new(mock.engine()).unwrap();
        assert_eq!(runner.max_context(), 512);
        let jobs: Vec<Job> = (0..4).map(|i| Job::greedy(text(400, i), 112)).collect();
        for (job, outcome) in jobs.iter().zip(together(&mut runner, &jobs)) {
            assert_eq!(outcome.tokens, mock.continuation(&job.prompt, 112));
        }
        // What can never fit is refused when it is submitted.
        let smaller = mock.with_pages(2);
        let mut runner = Runner::new(smaller.engine()).unwrap();
        let refused = runner.submit(greedy(&text(400, 0), 1), &CancelToken::new());
        if runner.max_context() < 512 {
            assert!(matches!(refused, Err(Error::ContextLength { prompt: 400, .. })));
        } else {
            assert!(refused.is_ok(), "a window needs few pages");
        }
    }
}

#[test]
fn answers_do_not_wait_for_long_prompts() {
    let mock = Mock::default().sized(64, 8, 2);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let cancel = CancelToken::new();
    let first = runner.submit(greedy(&[1, 2], 10), &cancel).unwrap();
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
    runner.submit(greedy(&(0..40).collect::<Vec<u32>>(), 1), &cancel).unwrap();
    for _ in 0..6 {
        step(&mut runner);
    }
    assert_eq!(tokens, 7, "one token of the answer in every step");
    // One token of the answer goes with each chunk of the prompt.
    assert_eq!(mock.log().calls[1..6], [9, 9, 9, 9, 9]);
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let mock = Mock { windows: vec![None], ..Mock::default() }.sized(500, 16, 3);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let cancel = CancelToken::new();
    runner.submit(greedy(&text(480, 0), 1), &cancel).unwrap();
    runner.step(&mut |_, _| {});
    let short = runner.submit(greedy(&text(20, 1), 1), &cancel).unwrap();
    let mut steps = 0;
    let mut ended = false;
    while !ended {
        runner.step(&mut |name, event| {
            ended |= matches!(event, Event::Finished(_)) && name == short;
        });
        steps += 1;
    }
    assert!(steps <= 4, "{steps}");
}

#[test]
fn a_full_queue_says_so() {
    let mock = Mock::default();
    let prompts = lapidary_text::PromptBuilder::new(&mock.program()).unwrap();
    let options = lapidary_runner::RunnerOptions { queue: 2, ..Default::default() };
    let mut runner = Runner::with_options(mock.engine(), prompts, options).unwrap();
    let cancel = CancelToken::new();
    // One runs and two wait.
    for _ in 0..3 {
        runner.submit(greedy(&[1], 5), &cancel).unwrap();
    }
    let full = runner.submit(greedy(&[1], 5), &cancel).unwrap_err();
    assert!(matches!(full, Error::QueueFull { .. }), "{full}");
    while runner.n_generations() > 2 {
        runner.step(&mut |_, _| {});
    }
    runner.submit(greedy(&[1], 5), &cancel).unwrap();
}

#[test]
fn a_busy_runner_says_so() {
    let mut runner = Runner::new(Mock::default().engine()).unwrap();
    let cancel = CancelToken::new();
    let request = || Request::new(vec![1], SamplingParams::greedy());
    runner.submit(request(), &cancel).unwrap();
    let e = runner.generate(request(), &cancel, |_| {}).unwrap_err();
    assert!(matches!(e, Error::Busy { active: 1 }));
    assert!(matches!(runner.greedy(&[1][..], 1), Err(Error::Busy { active: 1 })));
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

/// Pools that were sized for a context never cut its prompts shorter than the chunk: contexts that
/// are hardly longer than a window are the narrow place.
#[test]
fn a_sequence_that_is_alone_runs_whole_chunks_at_every_length_of_context() {
    for (window, chunk) in [(512, 512), (512, 128), (140, 200), (128, 64), (3, 64)] {
        for context in [window - 1, window, window + 1, window + 100, window + 129, 3 * window] {
            let mock = Mock { windows: vec![Some(window), None], ..Mock::default() };
            let mock = mock.sized(context.max(2) + 1, chunk, 1);
            let mut runner = Runner::new(mock.engine()).unwrap();
            let prompt = text(context.max(2) as usize, 1);
            runner.generate(greedy(&prompt, 1), &CancelToken::new(), |_| {}).unwrap();
            let calls = mock.log().calls.clone();
            let fewest = prompt.len().div_ceil(chunk as usize);
            assert_eq!(calls.len(), fewest, "{window} {chunk} {context}: {calls:?}");
        }
    }
}
