//! Calls that are submitted before the tokens of the last one are known.

use lapidary_backend::Abilities;
use lapidary_mock_engine::{Fault, Mock};
use lapidary_runner::{CancelToken, Event, FinishReason, Runner, SamplingParams};

use crate::{Job, alone, greedy, text, together};

fn mock(max_in_flight: usize, wrong_draws: usize) -> Mock {
    let abilities = Abilities { max_top_k: 64, prefers_top_k: true, max_in_flight };
    let mock = Mock { windows: vec![None, Some(40)], ..Mock::default() }.sized(400, 64, 6);
    Mock { abilities, wrong_draws, polls: 2, ..mock }
}

fn jobs() -> Vec<Job> {
    let sampled = |seed| SamplingParams {
        seed: Some(seed),
        top_k: 40,
        top_p: 0.9,
        temperature: 1.2,
        ..SamplingParams::default()
    };
    vec![
        Job { params: sampled(1), ..Job::greedy(text(100, 0), 120) },
        Job { params: sampled(2), arrives: 3, ..Job::greedy(text(150, 1), 90) },
        Job { arrives: 40, ..Job::greedy(text(20, 2), 200) },
        Job { arrives: 60, cancel_after: Some(11), ..Job::greedy(text(20, 3), 200) },
    ]
}

#[test]
fn answers_are_the_same_with_and_without() {
    for wrong_draws in [0, 1, 2, 7] {
        let mock = mock(2, wrong_draws);
        let mut runner = Runner::new(mock.engine()).unwrap();
        for (job, outcome) in jobs().iter().zip(together(&mut runner, &jobs())) {
            assert_eq!(outcome, alone(&mock, job), "every {wrong_draws}. draw is wrong");
        }
        let log = mock.log();
        assert_eq!((log.stale, log.in_flight), (0, 2));
        assert!(log.fed > 50, "{} of {} calls", log.fed, log.calls.len());
    }
}

#[test]
fn nearly_every_call_is_ahead_when_draws_are_right() {
    let mock = mock(3, 0);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let answer = runner.greedy(text(10, 0), 100).unwrap();
    assert_eq!(answer, mock.continuation(&text(10, 0), 100));
    let log = mock.log();
    // The prompt's call, and then one for each token but the last, all fed by the one before.
    assert_eq!((log.calls.len(), log.fed, log.whole), (100, 99, 0));
}

#[test]
fn the_device_draws_by_the_host_s_rule() {
    let mock = mock(2, 0);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let params = SamplingParams {
        seed: Some(9),
        temperature: 1.5,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.01,
        ..SamplingParams::default()
    };
    let job = Job { params, ..Job::greedy(text(10, 0), 100) };
    assert_eq!(together(&mut runner, std::slice::from_ref(&job)), [alone(&mock, &job)]);
    let log = mock.log();
    assert_eq!((log.calls.len(), log.fed), (100, 99), "no draw was taken back");
}

#[test]
fn a_wrong_draw_costs_one_token_of_one_sequence() {
    let mock = mock(2, 10);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let answer = runner.greedy(text(10, 0), 100).unwrap();
    assert_eq!(answer, mock.continuation(&text(10, 0), 100));
    let n = mock.log().calls.len();
    assert!((105..125).contains(&n), "{n} calls");
}

#[test]
fn what_needs_whole_rows_is_never_ahead() {
    let mock = mock(2, 0);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let params = SamplingParams { repetition_penalty: 1.3, ..SamplingParams::greedy() };
    let job = Job { params, ..Job::greedy(text(10, 0), 50) };
    assert_eq!(together(&mut runner, std::slice::from_ref(&job)), [alone(&mock, &job)]);
    let log = mock.log();
    assert_eq!((log.fed, log.in_flight, log.whole), (0, 1, 50));
}

#[test]
fn an_answer_that_stops_leaves_nothing_under_way() {
    let plain = mock(2, 0);
    let answer = plain.continuation(&text(10, 0), 30);
    let eos = answer[20];
    let first = answer.iter().position(|t| *t == eos).unwrap();
    let stopping = Mock { eos_ids: vec![eos], ..mock(2, 0) };
    let mut runner = Runner::new(stopping.engine()).unwrap();
    let cancel = CancelToken::new();
    for _ in 0..3 {
        let mut tokens = vec![];
        let finish = runner.generate(greedy(&text(10, 0), 30), &cancel, |event| {
            if let Event::Token { id, .. } = event {
                tokens.push(id);
            }
        });
        assert_eq!(finish.unwrap().reason, FinishReason::Stop);
        assert_eq!(tokens, answer[..first]);
        // The runner is idle, so this is allowed.
        runner.logits(&text(50, 1), lapidary_runner::Rows::Last, None, &mut |_, _| {}).unwrap();
    }
    assert_eq!(stopping.log().stale, 0);
}

#[test]
fn faults_ahead_are_faults_of_their_own_call() {
    for fault in [Fault::Error, Fault::LateError, Fault::Panic, Fault::Nan] {
        // The third call is the first that asks for a token.
        for call in 2..9 {
            let mock = mock(2, 0);
            mock.fail(call, fault);
            let mut runner = Runner::new(mock.engine()).unwrap();
            let job = Job::greedy(text(140, 0), 30);
            let outcome = together(&mut runner, std::slice::from_ref(&job)).remove(0);
            let whole = alone(&mock, &job);
            assert!(whole.tokens.starts_with(&outcome.tokens));
            // What fails when it is submitted ahead is made again.
            let early = matches!(fault, Fault::Error | Fault::Panic);
            assert!(outcome.failed || (early && outcome == whole), "{fault:?} in call {call}");
            mock.faults.lock().unwrap().clear();
            assert_eq!(together(&mut runner, &[job]), [whole]);
        }
    }
}
