//! Rows of prompts: how likely their tokens are, and embeddings; beside answers, and as alone.

use std::collections::BTreeMap;
use std::time::Duration;

use lapidary_mock_engine::{Fault, Mock};
use lapidary_runner::{
    CancelToken, Error, Event, FinishReason, GenerationId, Logprobs, Request, Runner,
    SamplingParams,
};
use proptest::prelude::*;

use crate::schedule::{job, mock};
use crate::{alone, greedy, text, together};

#[derive(Clone, Debug, Default, PartialEq)]
struct Scored {
    tokens: Vec<u32>,
    prompt: Vec<Option<Logprobs>>,
    embedding: Option<Vec<f32>>,
    reason: Option<FinishReason>,
    failed: bool,
}

fn run(runner: &mut Runner, requests: Vec<Request>) -> Vec<Scored> {
    let mut all: BTreeMap<GenerationId, Scored> = BTreeMap::new();
    for request in requests {
        all.insert(runner.submit(request, &CancelToken::new()).unwrap(), Scored::default());
    }
    for step in 0.. {
        assert!(step < 100_000, "no end");
        let more = runner.step(&mut |id, event| {
            let one = all.get_mut(&id).unwrap();
            match event {
                Event::Token { id, .. } => one.tokens.push(id),
                Event::PromptLogprobs { first, tokens } => {
                    assert_eq!(first, one.prompt.len(), "all come, in order");
                    one.prompt.extend_from_slice(tokens);
                }
                Event::Embedding { mean } => one.embedding = Some(mean.to_vec()),
                Event::Finished(finish) => one.reason = Some(finish.reason),
                Event::Failed(_) => one.failed = true,
                _ => {}
            }
        });
        if !more {
            break;
        }
    }
    all.into_values().collect()
}

fn scoring(prompt: &[u32], max_new: usize, top: usize) -> Request {
    Request { prompt_logprobs: Some(top), ..greedy(prompt, max_new) }
}

fn embedding(prompt: &[u32]) -> Request {
    Request { embed: true, ..Request::new(prompt.to_vec(), SamplingParams::greedy()) }
}

/// What the mock's own logits say of a text.
fn expected(mock: &Mock, prompt: &[u32]) -> Vec<Option<f32>> {
    let mut oracle = mock.oracle();
    let mut all = vec![None];
    for pair in prompt.windows(2) {
        oracle.push(pair[0]);
        let logits = oracle.logits();
        let sum: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        all.push(Some((f64::from(logits[pair[1] as usize]) - sum.ln()) as f32));
    }
    all
}

fn is_expected(mock: &Mock, prompt: &[u32], found: &[Option<Logprobs>]) -> bool {
    let want = expected(mock, prompt);
    want.len() == found.len()
        && want.iter().zip(found).all(|(want, found)| match (want, found) {
            (None, None) => true,
            (Some(want), Some(found)) => (want - found.logprob).abs() < 1e-4,
            _ => false,
        })
}

fn is_near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4)
}

#[test]
fn every_token_of_a_prompt_has_its_likelihood_once() {
    let mock = Mock::default().sized(300, 64, 2);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let prompt = text(200, 1);
    // Twice: what the first left in the caches is of no use to the second.
    for max_new in [0, 5] {
        let scored = run(&mut runner, vec![scoring(&prompt, max_new, 3)]).remove(0);
        assert!(is_expected(&mock, &prompt, &scored.prompt), "{:?}", scored.prompt);
        let top = |l: &Option<Logprobs>| l.as_ref().is_none_or(|l| l.top.len() == 3);
        assert!(scored.prompt.iter().all(top));
        assert_eq!(scored.tokens, mock.continuation(&prompt, max_new));
        assert_eq!(scored.reason, Some(FinishReason::Length));
    }
    // What was run for it is found by others.
    mock.clear_log();
    run(&mut runner, vec![greedy(&prompt, 1)]);
    assert!(mock.log().n_tokens() < 128);
}

#[test]
fn a_prompt_may_fill_the_context_if_no_answer_is_wanted() {
    let mock = Mock { hidden: true, ..Mock::default() }.sized(64, 8, 1);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let prompt = text(64, 1);
    assert_eq!(run(&mut runner, vec![scoring(&prompt, 0, 0)])[0].prompt.len(), 64);
    assert!(run(&mut runner, vec![embedding(&prompt)])[0].embedding.is_some());
    let mut refused = |request| runner.submit(request, &CancelToken::new());
    assert!(matches!(refused(scoring(&prompt, 1, 0)), Err(Error::ContextLength { .. })));
    assert!(matches!(refused(embedding(&text(65, 1))), Err(Error::ContextLength { .. })));
    assert!(matches!(refused(greedy(&prompt[..9], 0)), Err(Error::Param { .. })));
    assert!(matches!(refused(scoring(&prompt[..9], 0, 21)), Err(Error::Param { .. })));
}

#[test]
fn an_embedding_is_the_mean_of_the_hidden_rows_and_makes_no_logits() {
    let mock = Mock { hidden: true, ..Mock::default() }.sized(300, 64, 4);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let texts: Vec<Vec<u32>> = [1, 2, 100, 250].iter().map(|n| text(*n, *n as u32)).collect();
    let all = run(&mut runner, texts.iter().map(|t| embedding(t)).collect());
    for (text, scored) in texts.iter().zip(&all) {
        assert!(is_near(scored.embedding.as_ref().unwrap(), &mock.embedding(text)));
        assert_eq!((scored.reason, scored.tokens.len()), (Some(FinishReason::Stop), 0));
    }
    let log = mock.log();
    assert_eq!(log.hidden, log.calls.len());
    // Several in one call.
    assert!(log.calls.len() <= 250usize.div_ceil(64) + 3, "{:?}", log.calls);
    drop(log);
    assert_eq!(runner.n_generations(), 0);
    assert_eq!(runner.pages_in_use().0, 0);
}

#[test]
fn a_program_without_hidden_rows_is_told_so() {
    let mut runner = Runner::new(Mock::default().engine()).unwrap();
    let refused = runner.submit(embedding(&[1, 2]), &CancelToken::new());
    assert!(
        matches!(&refused, Err(e @ Error::Param { .. }) if e.to_string().contains("embeddings"))
    );
}

#[test]
fn answers_go_on_between_two_calls_for_embeddings() {
    let mock = Mock { hidden: true, ..Mock::default() }.sized(2000, 64, 3);
    let mut runner = Runner::new(mock.engine()).unwrap();
    let answer = runner.submit(greedy(&text(10, 1), 40), &CancelToken::new()).unwrap();
    runner.submit(embedding(&text(1900, 2)), &CancelToken::new()).unwrap();
    let (mut told, mut ended) = (0, false);
    // Every other step is the answer's.
    for _ in 0..82 {
        runner.step(&mut |id, event| {
            told += usize::from(id == answer && matches!(event, Event::Token { .. }));
            ended |= id == answer && matches!(event, Event::Finished(_));
        });
    }
    assert!(ended && told == 40, "{told}");
}

#[test]
fn a_call_that_fails_or_gives_no_numbers_fails_what_is_scored() {
    for fault in [Fault::Nan, Fault::Error, Fault::LateError, Fault::Panic] {
        let mock = Mock { hidden: true, ..Mock::default() }.sized(300, 64, 2);
        mock.fail(1, fault);
        let mut runner = Runner::new(mock.engine()).unwrap();
        let scored = run(&mut runner, vec![scoring(&text(200, 1), 3, 0)]);
        assert!(scored[0].failed, "{fault:?}");
        let again = run(&mut runner, vec![scoring(&text(200, 1), 3, 0)]).remove(0);
        assert!(is_expected(&mock, &text(200, 1), &again.prompt));
        assert_eq!(again.tokens, mock.continuation(&text(200, 1), 3));
    }
}

#[test]
fn a_deadline_ends_an_answer_with_what_there_is() {
    let mock = Mock { cost: (Duration::from_millis(10), Duration::ZERO), ..Mock::default() };
    let mock = mock.sized(300, 64, 1);
    let mut runner = crate::time::runner(&mock);
    let deadline = Some(Duration::from_millis(105));
    let late = Request { deadline, ..greedy(&text(10, 1), 100) };
    // It waits for the first all its time.
    let never = Request { deadline, ..greedy(&text(10, 2), 100) };
    let all = run(&mut runner, vec![late, never, greedy(&text(10, 3), 30)]);
    assert_eq!(all[0].reason, Some(FinishReason::Deadline));
    assert_eq!(all[0].tokens, mock.continuation(&text(10, 1), all[0].tokens.len()));
    assert!((9..=11).contains(&all[0].tokens.len()), "{:?}", all[0]);
    assert_eq!((all[1].reason, all[1].tokens.len()), (Some(FinishReason::Deadline), 0));
    assert_eq!((all[2].reason, all[2].tokens.len()), (Some(FinishReason::Length), 30));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Answers, likelihoods and embeddings of all kinds at once, with pages for few of them.
    #[test]
    fn scores_among_answers_are_as_alone(
        mock in mock(),
        jobs in prop::collection::vec((job(), 0usize..3), 1..8),
    ) {
        let mock = Mock { hidden: true, ..mock };
        let mut runner = Runner::new(mock.engine()).unwrap();
        let request = |(job, kind): &(crate::Job, usize)| match kind {
            0 => job.request(),
            1 => Request { prompt_logprobs: Some(2), ..job.request() },
            _ => Request { embed: true, ..job.request() },
        };
        let all = run(&mut runner, jobs.iter().map(request).collect());
        for ((job, kind), scored) in jobs.iter().zip(&all) {
            prop_assert!(!scored.failed);
            if *kind == 2 {
                let want = mock.embedding(&job.prompt);
                prop_assert!(is_near(scored.embedding.as_ref().unwrap(), &want));
                continue;
            }
            let whole = crate::Job { cancel_after: None, ..job.clone() };
            prop_assert_eq!(&scored.tokens, &alone(&mock, &whole).tokens);
            if *kind == 1 {
                prop_assert!(is_expected(&mock, &job.prompt, &scored.prompt));
            }
        }
        prop_assert_eq!(mock.log().stale, 0);
        prop_assert_eq!(runner.pages_in_use().0, 0);
        // Nothing wrong was left behind.
        let plain: Vec<crate::Job> = jobs.into_iter().map(|(job, _)| job).collect();
        let after = together(&mut runner, &plain);
        for (job, outcome) in plain.iter().zip(&after) {
            prop_assert_eq!(outcome, &alone(&mock, job));
        }
    }
}
