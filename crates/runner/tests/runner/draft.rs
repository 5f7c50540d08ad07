//! Guesses of the next tokens: they save calls and change nothing.

use std::sync::Arc;

use lapidary_backend::Abilities;
use lapidary_mock_engine::Mock;
use lapidary_runner::{
    CancelToken, Drafter, Drafting, Event, Finish, Lookup, Request, Runner, RunnerOptions,
    SamplingParams,
};
use lapidary_text::PromptBuilder;

use crate::{Job, alone, greedy, text, together};

/// Knows how texts go on, and is wrong at every so many-th position.
#[derive(Debug)]
struct Knowing {
    mock: Mock,
    wrong_every: usize,
}

impl Drafter for Knowing {
    fn guess(&self, tokens: &[u32], n: usize, into: &mut Vec<u32>) {
        let true_ones = self.mock.continuation(tokens, n);
        into.extend(true_ones.into_iter().enumerate().map(|(i, id)| {
            let is_wrong = (tokens.len() + i) % self.wrong_every == self.wrong_every - 1;
            if is_wrong { (id + 1) % self.mock.vocab_size } else { id }
        }));
    }
}

fn runner(mock: &Mock, drafter: Arc<dyn Drafter>) -> Runner {
    drafting_runner(mock, Drafting::Text(drafter))
}

fn drafting_runner(mock: &Mock, drafting: Drafting) -> Runner {
    let engine = mock.engine();
    let prompts = PromptBuilder::new(engine.program()).unwrap();
    let options = RunnerOptions { drafting, ..RunnerOptions::default() };
    Runner::with_options(engine, prompts, options).unwrap()
}

fn knowing(mock: &Mock, wrong_every: usize) -> Arc<dyn Drafter> {
    // With an engine of its own, whose calls nobody counts.
    let mock = Mock { log: Default::default(), ..mock.clone() };
    Arc::new(Knowing { mock, wrong_every })
}

/// Engines that give rows whole, the largest of them, or draw ahead.
fn mocks() -> [Mock; 3] {
    let plain = Mock { windows: vec![None, Some(40)], ..Mock::default() }.sized(400, 64, 6);
    let top = Abilities { max_top_k: 64, prefers_top_k: true, max_in_flight: 1 };
    let ahead = Abilities { max_in_flight: 2, ..top };
    [plain.clone(), Mock { abilities: top, ..plain.clone() }, Mock { abilities: ahead, ..plain }]
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams {
        seed: Some(seed),
        top_k: 40,
        top_p: 0.9,
        temperature: 0.4,
        repetition_penalty: 1.1,
        ..SamplingParams::default()
    }
}

fn generate(runner: &mut Runner, request: Request) -> (Vec<u32>, Finish) {
    let mut tokens = vec![];
    let finish = runner.generate(request, &CancelToken::new(), |event| {
        if let Event::Token { id, .. } = event {
            tokens.push(id);
        }
    });
    (tokens, finish.unwrap())
}

fn jobs() -> [Job; 5] {
    [
        Job { params: sampled(1), ..Job::greedy(text(100, 0), 120) },
        Job { params: sampled(2), arrives: 3, ..Job::greedy(text(150, 1), 90) },
        Job { arrives: 40, ..Job::greedy(text(20, 2), 200) },
        Job { arrives: 60, cancel_after: Some(11), ..Job::greedy(text(20, 3), 200) },
        Job { arrives: 61, ..Job::greedy(text(390, 4), 50) },
    ]
}

/// With a drafter in the program.
fn with_drafter(mock: &Mock) -> Mock {
    Mock { hidden: true, drafts: true, ..mock.clone() }.sized(400, 64, 6)
}

#[test]
fn answers_are_the_same_with_right_and_wrong_guesses() {
    let jobs = jobs();
    for mock in mocks() {
        for wrong_every in [1, 2, 5, 1000] {
            let mut runner = runner(&mock, knowing(&mock, wrong_every));
            for (job, outcome) in jobs.iter().zip(together(&mut runner, &jobs)) {
                assert_eq!(outcome, alone(&mock, job), "wrong every {wrong_every}");
            }
            assert_eq!(mock.log().stale, 0);
            assert_eq!(runner.pages_in_use().0, 0, "a page is still held");
        }
    }
}

#[test]
fn right_guesses_save_calls() {
    let mock = &mocks()[0];
    let mut runner = runner(mock, knowing(mock, 1000));
    let (tokens, finish) = generate(&mut runner, greedy(&text(10, 0), 100));
    assert_eq!(tokens, mock.continuation(&text(10, 0), 100));
    // The prompt, five tokens, and then nine a call.
    let calls = mock.log().calls.len();
    assert!(calls <= 14, "{calls} calls");
    let stats = finish.stats;
    assert_eq!(stats.draft_calls + 1, calls);
    assert_eq!(stats.accepted_tokens, stats.drafted_tokens);
    assert_eq!(stats.accepted_tokens + calls, 100);
    assert!(stats.tokens_per_draft().unwrap() > 7.0);
}

#[test]
fn wrong_guesses_are_given_up() {
    let mock = &mocks()[0];
    let mut runner = runner(mock, knowing(mock, 1));
    let (tokens, finish) = generate(&mut runner, greedy(&text(10, 0), 200));
    assert_eq!(tokens, mock.continuation(&text(10, 0), 200));
    assert_eq!(finish.stats.accepted_tokens, 0);
    let drafted = finish.stats.drafted_tokens;
    assert!(drafted < 20, "{drafted} tokens were guessed in vain");
}

#[test]
fn a_call_of_many_answers_brings_no_guesses() {
    let mock = Mock::default().sized(100, 64, 24);
    let mut runner = runner(&mock, knowing(&mock, 1000));
    let jobs: Vec<Job> = (0..24).map(|i| Job::greedy(text(5, i), 20)).collect();
    together(&mut runner, &jobs);
    let most = mock.log().rows.iter().copied().max();
    assert_eq!(most, Some(24));
}

#[test]
fn text_that_comes_again_is_looked_up() {
    // An answer whose tokens cycle, because nothing but the last token counts.
    let mock = Mock { windows: vec![Some(1)], ..Mock::default() }.sized(600, 64, 1);
    let mut runner = runner(&mock, Arc::new(Lookup));
    let (tokens, finish) = generate(&mut runner, greedy(&text(10, 0), 400));
    assert_eq!(tokens, mock.continuation(&text(10, 0), 400));
    assert!(finish.stats.accepted_tokens > 0, "{:?}", finish.stats);
}

#[test]
fn guesses_that_are_no_tokens_are_left_out() {
    #[derive(Debug)]
    struct Wild;
    impl Drafter for Wild {
        fn guess(&self, _: &[u32], n: usize, into: &mut Vec<u32>) {
            into.extend(std::iter::repeat_n(u32::MAX, 3 * n + 1));
        }
    }
    let mock = &mocks()[0];
    let mut runner = runner(mock, Arc::new(Wild));
    let (tokens, finish) = generate(&mut runner, greedy(&text(10, 0), 50));
    assert_eq!(tokens, mock.continuation(&text(10, 0), 50));
    assert_eq!(finish.stats.drafted_tokens, 0);
}

#[test]
fn answers_are_the_same_with_a_drafter() {
    for mock in mocks() {
        let mock = with_drafter(&mock);
        let knowing = |wrong_every| Drafting::ModelSaying(knowing(&mock, wrong_every));
        for drafting in [Drafting::Model, knowing(1), knowing(3), knowing(1000)] {
            mock.clear_log();
            let what = format!("{drafting:?}");
            let mut runner = drafting_runner(&mock, drafting);
            for (job, outcome) in jobs().iter().zip(together(&mut runner, &jobs())) {
                assert_eq!(outcome, alone(&mock, job), "{what}");
            }
            let log = mock.log();
            assert!(log.drafts > 0, "{what}");
            assert_eq!((log.stale, log.wrong_hidden), (0, 0), "{what}");
            drop(log);
            assert_eq!(runner.pages_in_use().0, 0, "a page is still held");
        }
    }
}

#[test]
fn a_drafter_guesses_for_all_in_one_call() {
    let mock = with_drafter(&mocks()[0]);
    let mut runner = drafting_runner(&mock, Drafting::ModelSaying(knowing(&mock, 1000)));
    let jobs: Vec<Job> = (0..4).map(|i| Job::greedy(text(20, i), 60)).collect();
    together(&mut runner, &jobs);
    let log = mock.log();
    // Sixteen tokens a call at the most: three guesses each, which take three calls of the drafter.
    assert_eq!(log.rows.iter().copied().max(), Some(16));
    assert!(log.drafts <= 3 * log.calls.len(), "{} for {}", log.drafts, log.calls.len());
}

#[test]
fn a_drafter_that_is_not_there_is_refused() {
    let mock = &mocks()[0];
    let engine = mock.engine();
    let prompts = PromptBuilder::new(engine.program()).unwrap();
    let options = RunnerOptions { drafting: Drafting::Model, ..RunnerOptions::default() };
    let error = Runner::with_options(engine, prompts, options).err().unwrap();
    assert!(error.to_string().contains("no drafter"), "{error}");
}
