//! Many sequences at once as numbers, in the terms of llama-batched-bench: so many prompts are read
//! together, then every call makes the next token of each.

use std::time::Instant;

use lapidary_runner::{CancelToken, Error, Event, Request, Result, Runner, SamplingParams};

use crate::bench::text_from;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchTest {
    /// Sequences at once.
    pub n_sequences: usize,
    /// Tokens of each prompt, at least one.
    pub n_prompt: usize,
    /// Tokens that are generated for each.
    pub n_gen: usize,
}

impl BatchTest {
    /// Positions that one sequence needs.
    pub fn context(&self) -> usize {
        // The token that comes out of the prompt is not among those that are measured.
        self.n_prompt.saturating_add(self.n_gen).saturating_add(1)
    }

    /// Positions that are filled in the end, of all sequences.
    pub fn n_kv(&self) -> usize {
        self.n_sequences.saturating_mul(self.n_prompt.saturating_add(self.n_gen))
    }
}

/// How long a test took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchTimes {
    /// Seconds to read all prompts.
    pub prefill_s: f64,
    /// Seconds in which all sequences were under way.
    pub decode_s: f64,
    /// Tokens that were generated in that time.
    pub decode_tokens: usize,
    /// Calls of the engine in that time.
    pub decode_calls: usize,
}

/// Runs a test once, by the runner's own scheduler.
pub fn bench_batch(runner: &mut Runner, test: BatchTest) -> Result<BatchTimes> {
    runner.forget();
    // Prompts are read alone: an answer ends with its first token.
    let start = Instant::now();
    submit(runner, test, 1)?;
    let mut failed = None;
    while runner.step(&mut |_, event| note_failure(&mut failed, &event)) {}
    failed.map_or(Ok(()), Err)?;
    let prefill_s = start.elapsed().as_secs_f64();
    let times = BatchTimes { prefill_s, ..BatchTimes::default() };
    if test.n_gen == 0 {
        return Ok(times);
    }
    // They are at hand now, so each sequence begins with its first token.
    submit(runner, test, test.n_gen.saturating_add(1))?;
    decode(runner, test, times)
}

fn decode(runner: &mut Runner, test: BatchTest, mut times: BatchTimes) -> Result<BatchTimes> {
    let mut began = std::collections::BTreeSet::new();
    let mut all_began: Option<Instant> = None;
    let (mut failed, mut more) = (None, true);
    while more {
        let mut tokens = 0;
        more = runner.step(&mut |id, event| {
            if let Event::Token { .. } = event {
                began.insert(id);
                tokens += 1;
            }
            note_failure(&mut failed, &event);
        });
        match all_began {
            Some(_) => {
                times.decode_tokens += tokens;
                times.decode_calls += 1;
            }
            None if began.len() == test.n_sequences => all_began = Some(Instant::now()),
            None => {}
        }
    }
    times.decode_s = all_began.map_or(0.0, |start| start.elapsed().as_secs_f64());
    failed.map_or(Ok(times), Err)
}

fn note_failure(failed: &mut Option<Error>, event: &Event<'_>) {
    if let Event::Failed(error) = event {
        failed.get_or_insert_with(|| (*error).clone());
    }
}

/// Submits all sequences, each with a prompt that nobody shares.
fn submit(runner: &mut Runner, test: BatchTest, max_new: usize) -> Result<()> {
    let vocab_size = runner.metadata().vocab_size;
    for i in 0..test.n_sequences {
        let prompt = text_from(i.wrapping_mul(test.n_prompt), test.n_prompt, vocab_size);
        let request = Request {
            max_new,
            ignore_eos: true,
            scope: i as u64,
            ..Request::new(prompt, SamplingParams::greedy())
        };
        runner.submit(request, &CancelToken::new())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::BatchTest;

    #[test]
    fn positions_are_counted_as_llama_batched_bench_counts_them() {
        let test = BatchTest { n_sequences: 4, n_prompt: 128, n_gen: 64 };
        assert_eq!((test.n_kv(), test.context()), (768, 193));
    }
}
