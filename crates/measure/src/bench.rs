//! Speed as numbers, in the terms of llama-bench: `ppN` feeds N tokens, `tgN` generates N, each
//! after `depth` tokens are in the caches.

use std::sync::Arc;
use std::time::Instant;

use lapidary_runner::{CancelToken, Request, Result, Rows, Runner, SamplingParams};
use lapidary_text::{Prompt, SoftInput, SoftRun};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BenchTest {
    /// Tokens that are fed; 0 when generation is measured.
    pub n_prompt: usize,
    /// Tokens that are generated; 0 when feeding is measured.
    pub n_gen: usize,
    /// Tokens that are in the caches before.
    pub depth: usize,
}

impl BenchTest {
    /// `pp512`, `tg128 @ d1024`.
    pub fn name(&self) -> String {
        let what = match self.n_gen {
            0 => format!("pp{}", self.n_prompt),
            n => format!("tg{n}"),
        };
        if self.depth > 0 { format!("{what} @ d{}", self.depth) } else { what }
    }

    /// Positions that the test needs.
    pub fn context(&self) -> usize {
        // Generation starts after at least one token, and its last token is not fed.
        let before = self.depth.max(usize::from(self.n_gen > 0));
        before.saturating_add(self.n_prompt).saturating_add(self.n_gen)
    }
}

/// Runs a test once and returns its seconds. Tokens are arbitrary but fixed: speed does not depend
/// on what they say, except through the experts that they choose.
pub fn bench_once(runner: &mut Runner, test: BenchTest) -> Result<f64> {
    let vocab_size = runner.metadata().vocab_size;
    let tokens = text(test.context(), vocab_size);
    if test.n_gen == 0 {
        return prefill(runner, &tokens, test);
    }
    runner.forget();
    let request = Request {
        // The first token comes out of the prompt; those after it are what is measured.
        max_new: test.n_gen + 1,
        ignore_eos: true,
        ..Request::new(tokens[..test.depth.max(1)].to_vec(), SamplingParams::greedy())
    };
    let finish = runner.generate(request, &CancelToken::new(), |_| {})?;
    Ok(finish.stats.decode_s)
}

/// Seconds of a prompt that shows or plays something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MediumTimes {
    /// To make its soft rows.
    pub encode_s: f64,
    /// To the first token, all in all.
    pub first_token_s: f64,
}

/// Shows or plays an input between a few tokens of text, and takes the first token after it.
pub fn bench_medium(
    runner: &mut Runner,
    input: &Arc<SoftInput>,
    n_text: usize,
) -> Result<MediumTimes> {
    let vocab_size = runner.metadata().vocab_size;
    let tokens = text(n_text + input.n_soft, vocab_size);
    let soft = vec![SoftRun { start: n_text / 2, input: input.clone() }];
    runner.forget();
    let request = Request {
        max_new: 1,
        ignore_eos: true,
        ..Request::new(Prompt { tokens, soft }, SamplingParams::greedy())
    };
    let stats = runner.generate(request, &CancelToken::new(), |_| {})?.stats;
    let first_token_s = stats.first_token_s.unwrap_or(stats.encode_s + stats.prefill_s);
    Ok(MediumTimes { encode_s: stats.encode_s, first_token_s })
}

/// Tokens that are arbitrary but fixed.
pub(crate) fn text(n: usize, vocab_size: u32) -> Vec<u32> {
    text_from(0, n, vocab_size)
}

/// The same from a later token on.
pub(crate) fn text_from(first: usize, n: usize, vocab_size: u32) -> Vec<u32> {
    let first = first as u32;
    let ids = (0..n as u32).map(|i| first.wrapping_add(i).wrapping_mul(2_654_435_761));
    ids.map(|id| id % vocab_size).collect()
}

fn prefill(runner: &mut Runner, tokens: &[u32], test: BenchTest) -> Result<f64> {
    if test.depth == 0 {
        let start = Instant::now();
        runner.logits(&tokens[..test.n_prompt], Rows::Last, None, &mut |_, _| {})?;
        return Ok(start.elapsed().as_secs_f64());
    }
    // What is in the caches already is reused, so that only the prompt is run and timed.
    runner.forget();
    let mut run = |n: usize| {
        let prompt = tokens[..n].to_vec();
        let request = Request {
            max_new: 1,
            ignore_eos: true,
            ..Request::new(prompt, SamplingParams::greedy())
        };
        runner.generate(request, &CancelToken::new(), |_| {})
    };
    run(test.depth)?;
    Ok(run(test.depth + test.n_prompt)?.stats.prefill_s)
}

#[cfg(test)]
mod tests {
    use super::BenchTest;

    #[test]
    fn names_are_those_of_llama_bench() {
        let test = BenchTest { n_prompt: 512, n_gen: 0, depth: 0 };
        assert_eq!((test.name().as_str(), test.context()), ("pp512", 512));
        let test = BenchTest { n_prompt: 0, n_gen: 128, depth: 1024 };
        assert_eq!((test.name().as_str(), test.context()), ("tg128 @ d1024", 1152));
    }
}
