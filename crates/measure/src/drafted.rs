//! What a drafter gains if so many of its guesses are right.
//!
//! Weights that are random agree with nobody. So the answer is found first, and then told again: the
//! drafter runs as it would, and what it says is replaced by the answer, or by something else where
//! it is to be wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lapidary_runner::{
    CancelToken, Drafter, Drafting, Event, Request, Result, Runner, SamplingParams, Stats,
};

use crate::bench::{BenchTest, text};

/// Knows an answer, and how many of its tokens it is to say in one go, on average.
#[derive(Debug)]
struct Knowing {
    /// Prompt and answer.
    tokens: Vec<u32>,
    accepted: f64,
    calls: AtomicUsize,
    vocab_size: u32,
}

impl Drafter for Knowing {
    fn guess(&self, tokens: &[u32], n: usize, into: &mut Vec<u32>) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) as f64;
        let right = ((call + 1.0) * self.accepted).floor() - (call * self.accepted).floor();
        let after = self.tokens.get(tokens.len()..).unwrap_or_default().iter().take(n);
        into.extend(after.enumerate().map(|(i, id)| match (i as f64) < right {
            true => *id,
            false => (*id + 1) % self.vocab_size,
        }));
    }
}

/// Generates with the program's drafter, `accepted` of whose guesses are right in each call, on
/// average. What guesses afterwards is nothing.
pub fn bench_drafted(runner: &mut Runner, test: BenchTest, accepted: f64) -> Result<Stats> {
    let vocab_size = runner.metadata().vocab_size;
    let prompt = text(test.depth.max(1), vocab_size);
    runner.set_drafting(Drafting::Off)?;
    let (mut tokens, _) = generate(runner, &prompt, test.n_gen)?;
    tokens.splice(0..0, prompt.iter().copied());
    let knowing = Knowing { tokens, accepted, calls: AtomicUsize::new(0), vocab_size };
    runner.set_drafting(Drafting::ModelSaying(Arc::new(knowing)))?;
    let measured = generate(runner, &prompt, test.n_gen);
    runner.set_drafting(Drafting::Off)?;
    Ok(measured?.1)
}

fn generate(runner: &mut Runner, prompt: &[u32], n: usize) -> Result<(Vec<u32>, Stats)> {
    runner.forget();
    let request = Request {
        max_new: n + 1,
        ignore_eos: true,
        ..Request::new(prompt.to_vec(), SamplingParams::greedy())
    };
    let mut tokens = Vec::with_capacity(n + 1);
    let finish = runner.generate(request, &CancelToken::new(), |event| {
        if let Event::Token { id, .. } = event {
            tokens.push(id);
        }
    })?;
    Ok((tokens, finish.stats))
}
