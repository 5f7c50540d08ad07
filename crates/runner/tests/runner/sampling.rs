//! What goes with a choice: constraints and log-probabilities, from whole rows and from candidates.

use lapidary_backend::Abilities;
use lapidary_mock_engine::Mock;
use lapidary_runner::{
    CancelToken, Error, Event, FinishReason, Logprobs, MAX_LOGPROBS, Request, Runner,
    SamplingParams,
};
use lapidary_text::TokenConstraint;

use crate::{greedy, text};

/// Whole rows; candidates; candidates of which the device draws.
fn mocks() -> [Mock; 3] {
    [(false, 1), (true, 1), (true, 2)].map(|(prefers_top_k, max_in_flight)| {
        let abilities = Abilities { max_top_k: 64, prefers_top_k, max_in_flight };
        Mock { abilities, ..Mock::default().sized(200, 64, 2) }
    })
}

/// Tokens that a given list has in turn, any of three at each place, and then the end.
#[derive(Clone)]
struct Turns {
    at: usize,
    len: usize,
    mask: Vec<u32>,
}

impl Turns {
    fn allowed(at: usize) -> [u32; 3] {
        [at as u32 % 48, (at as u32 * 7 + 3) % 48, (at as u32 * 5 + 40) % 48]
    }
}

impl TokenConstraint for Turns {
    fn mask(&mut self) -> Option<&[u32]> {
        // Anything may come at every fifth place.
        if self.at % 5 == 4 {
            return None;
        }
        self.mask = vec![0; 2];
        for id in Self::allowed(self.at) {
            self.mask[id as usize / 32] |= 1 << (id % 32);
        }
        Some(&self.mask)
    }

    fn accept(&mut self, token: u32) {
        assert!(self.at % 5 == 4 || Self::allowed(self.at).contains(&token));
        self.at += 1;
    }

    fn is_done(&self) -> bool {
        self.at == self.len
    }

    fn copy(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

fn collect(runner: &mut Runner, request: Request) -> (Vec<u32>, Vec<Logprobs>, FinishReason) {
    let (mut tokens, mut all) = (vec![], vec![]);
    let finish = runner.generate(request, &CancelToken::new(), |event| {
        if let Event::Token { id, logprobs } = event {
            tokens.push(id);
            all.extend(logprobs.cloned());
        }
    });
    (tokens, all, finish.unwrap().reason)
}

#[test]
fn a_constraint_is_kept_and_ends_the_answer() {
    let sampled = SamplingParams { seed: Some(4), top_k: 20, ..SamplingParams::default() };
    let penalised = SamplingParams { repetition_penalty: 1.5, ..SamplingParams::greedy() };
    for params in [SamplingParams::greedy(), sampled, penalised] {
        let answers = mocks().map(|mock| {
            let mut runner = Runner::new(mock.engine()).unwrap();
            let constraint: Box<dyn TokenConstraint> =
                Box::new(Turns { at: 0, len: 17, mask: vec![] });
            let request = Request {
                max_new: 100,
                constraint: Some(constraint),
                ..Request::new(text(10, 0), params.clone())
            };
            let (tokens, _, reason) = collect(&mut runner, request.clone());
            assert_eq!((tokens.len(), reason), (17, FinishReason::Stop));
            // A clone of a request begins where the request does.
            assert_eq!(collect(&mut runner, request).0, tokens);
            assert_eq!(mock.log().fed, 0, "nothing goes ahead of a constraint");
            tokens
        });
        assert!(answers.iter().all(|a| *a == answers[0]));
    }
}

#[test]
fn a_constraint_that_leaves_nothing_is_an_error() {
    for mock in mocks() {
        let mut runner = Runner::new(mock.engine()).unwrap();
        let params =
            SamplingParams { suppress: Turns::allowed(0).to_vec(), ..SamplingParams::greedy() };
        let constraint: Box<dyn TokenConstraint> = Box::new(Turns { at: 0, len: 9, mask: vec![] });
        let request = Request { constraint: Some(constraint), ..Request::new(text(10, 0), params) };
        let e = runner.generate(request, &CancelToken::new(), |_| {}).unwrap_err();
        assert!(matches!(e, Error::AllMasked), "{e}");
    }
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let params =
        SamplingParams { seed: Some(4), top_k: 10, temperature: 0.5, ..SamplingParams::default() };
    for mock in mocks() {
        let mut runner = Runner::new(mock.engine()).unwrap();
        let request =
            Request { max_new: 12, logprobs: Some(3), ..Request::new(text(10, 0), params.clone()) };
        let (tokens, logprobs, _) = collect(&mut runner, request);
        assert_eq!((tokens.len(), logprobs.len()), (12, 12));
        let mut oracle = mock.oracle();
        text(10, 0).iter().for_each(|id| oracle.push(*id));
        for (id, found) in tokens.iter().zip(&logprobs) {
            let logits = oracle.logits();
            let sum = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln() as f32;
            let mut best: Vec<(u32, f32)> =
                logits.iter().enumerate().map(|(i, x)| (i as u32, x - sum)).collect();
            best.sort_by(|a, b| b.1.total_cmp(&a.1));
            assert!((found.logprob - (logits[*id as usize] - sum)).abs() < 1e-4);
            assert_eq!(found.top.len(), 3);
            for (found, wanted) in found.top.iter().zip(&best) {
                assert!(found.0 == wanted.0 && (found.1 - wanted.1).abs() < 1e-4);
            }
            oracle.push(*id);
        }
        // None are shown to who did not ask, and no more than there may be.
        assert!(collect(&mut runner, greedy(&text(10, 0), 3)).1.is_empty());
        let many = Request { logprobs: Some(MAX_LOGPROBS + 1), ..greedy(&[1], 1) };
        let e = runner.submit(many, &CancelToken::new()).unwrap_err();
        assert!(matches!(e, Error::Param { param: "top_logprobs", .. }));
    }
}

#[test]
fn one_that_needs_whole_rows_does_not_change_another() {
    let [_, mock, _] = mocks();
    let mut runner = Runner::new(mock.engine()).unwrap();
    let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::greedy() };
    let penalised = Request { max_new: 20, ..Request::new(text(10, 1), params) };
    let cancel = CancelToken::new();
    let first = runner.submit(greedy(&text(10, 0), 20), &cancel).unwrap();
    runner.submit(penalised, &cancel).unwrap();
    let mut tokens = vec![];
    while runner.step(&mut |name, event| {
        if let Event::Token { id, .. } = event
            && name == first
        {
            tokens.push(id);
        }
    }) {}
    assert_eq!(tokens, mock.continuation(&text(10, 0), 20));
    assert!(mock.log().whole > 0);
}
