//! The runner over a mock engine whose answers depend on every key that a token finds.

mod ahead;
mod draft;
mod generate;
mod media;
mod prefix;
mod reuse;
mod sampling;
mod schedule;
mod score;
mod thinking;
mod time;

use std::collections::BTreeMap;

use lapidary_mock_engine::Mock;
use lapidary_runner::{
    CancelToken, Event, FinishReason, GenerationId, Request, Runner, SamplingParams,
};

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

impl Job {
    fn greedy(prompt: Vec<u32>, max_new: usize) -> Self {
        let params = SamplingParams::greedy();
        Job { prompt, max_new, params, arrives: 0, cancel_after: None }
    }

    fn request(&self) -> Request {
        Request { max_new: self.max_new, ..Request::new(self.prompt.clone(), self.params.clone()) }
    }
}

fn greedy(tokens: &[u32], max_new: usize) -> Request {
    Job::greedy(tokens.to_vec(), max_new).request()
}

/// Each in a runner of its own, over the plainest engine.
fn alone(mock: &Mock, job: &Job) -> Outcome {
    let plain = Mock {
        log: Default::default(),
        faults: Default::default(),
        abilities: Mock::default().abilities,
        ..mock.clone()
    };
    let mut runner = Runner::new(plain.sized(mock.options.max_context, 64, 1).engine()).unwrap();
    let cancel = CancelToken::new();
    let mut outcome = Outcome::default();
    let finish = runner.generate(job.request(), &cancel, |event| {
        if let Event::Token { id, .. } = event {
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
            names.insert(runner.submit(job.request(), &cancels[i]).unwrap(), i);
        }
        let more = runner.step(&mut |name, event| {
            let i = names[&name];
            let outcome = &mut outcomes[i];
            assert!(outcome.reason.is_none() && !outcome.failed, "an event after the end");
            match event {
                Event::Token { id, .. } => {
                    outcome.tokens.push(id);
                    if Some(outcome.tokens.len()) == jobs[i].cancel_after {
                        cancels[i].cancel();
                    }
                }
                Event::Text { .. } | Event::Thinking { .. } | Event::Call(_) => {}
                Event::PromptLogprobs { .. } | Event::Embedding { .. } => {}
                Event::Finished(finish) => outcome.reason = Some(finish.reason),
                Event::Failed(_) => outcome.failed = true,
            }
        });
        if !more && step >= last {
            return outcomes;
        }
        assert!(step < 100_000, "no end");
    }
    outcomes
}

/// A text of so many tokens that differs from those of other numbers from the start.
fn text(n: usize, which: u32) -> Vec<u32> {
    let first = which % 40 + 3;
    let rest = (1..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) % 40 + 3);
    std::iter::once(first).chain(rest).take(n).collect()
}
