//! Rows of a prompt that are wanted for their own sake: how likely its tokens were, and its embedding.

use lapidary_program::output;

use crate::error::{Error, Result};
use crate::flight::FlightPart;
use crate::generation::Generation;
use crate::logprobs;
use crate::request::{Event, FinishReason, GenerationId, Logprobs};
use crate::runner::Runner;
use crate::sampler::all_finite;
use crate::scheduler::{Scores, Sequence};
use crate::step::OnEvent;

/// Bytes of the rows of logits that one call brings to the host for prompts.
const ROW_BYTES: usize = 64 << 20;

/// Rows of logits of prompts in one call.
pub(crate) fn rows_per_call(vocab_size: u32) -> usize {
    (ROW_BYTES / (4 * vocab_size.max(1) as usize)).max(1)
}

/// The sum of rows, one after another.
#[derive(Debug, Default)]
pub(crate) struct Mean {
    sum: Vec<f64>,
    n: usize,
    /// Scratch.
    mean: Vec<f32>,
}

impl Mean {
    fn push(&mut self, row: &[f32]) {
        self.sum.resize(row.len(), 0.0);
        self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
        self.n += 1;
    }

    fn mean(&mut self) -> &[f32] {
        let n = self.n.max(1) as f64;
        self.mean.clear();
        self.mean.extend(self.sum.iter().map(|sum| (sum / n) as f32));
        &self.mean
    }
}

impl Runner {
    /// Takes the rows of a prompt's tokens that a call made.
    pub(crate) fn take_scores(
        &mut self,
        FlightPart { part, first, .. }: &FlightPart,
        on_event: &mut OnEvent<'_>,
    ) -> Result<()> {
        let Some(sequence) = self.scheduler.get_mut(part.id) else { return Ok(()) };
        let Sequence { tokens, prompt_len, scores, scored, data, .. } = sequence;
        let name = match scores {
            Scores::None => return Ok(()),
            Scores::Logits => output::LOGITS,
            Scores::Hidden => output::HIDDEN,
        };
        let missing = || Error::Program(format!("method `forward` has no output `{name}`"));
        let out = self.results.get(name).filter(|out| out.channels > 0).ok_or_else(missing)?;
        let from = part.start + part.len - part.scores;
        let rows = (from..part.start + part.len).zip(*first as usize..);
        if *scores == Scores::Hidden {
            for (_, row) in rows {
                if !all_finite(out.row(row)) {
                    return Err(Error::NonFiniteLogits { node: None });
                }
                data.mean.push(out.row(row));
            }
        } else if let Some(n) = data.n_prompt_logprobs {
            let mut found: Vec<Option<Logprobs>> = Vec::with_capacity(part.scores + 1);
            if from == 0 {
                found.push(None);
            }
            for (position, row) in rows {
                if !all_finite(out.row(row)) {
                    return Err(Error::NonFiniteLogits { node: None });
                }
                let next = position + 1;
                // The row after the prompt is the answer's.
                if next < *prompt_len {
                    found.push(data.is_token(next).then(|| {
                        let mut logprobs = Logprobs::default();
                        logprobs::fill(&mut logprobs, out, row, None, tokens[next], n);
                        logprobs
                    }));
                }
            }
            let first = if from == 0 { 0 } else { from + 1 };
            if !found.is_empty() {
                on_event(data.id, Event::PromptLogprobs { first, tokens: &found });
            }
        }
        *scored = part.start + part.len;
        Ok(())
    }

    /// Ends a generation of which no token is wanted, if all of its prompt was run; whether it did.
    pub(crate) fn end_scored(&mut self, id: u64, on_event: &mut OnEvent<'_>) -> bool {
        let is_over = |s: &Sequence<Generation>| {
            s.held.len() >= s.prompt_len && (s.data.is_full() || s.scores == Scores::Hidden)
        };
        if !self.scheduler.get(id).is_some_and(is_over) {
            return false;
        }
        let now = self.clock.now();
        let Some(sequence) = self.scheduler.remove(id, None) else { return false };
        let mut generation = sequence.data;
        let reason = match sequence.scores {
            Scores::Hidden => {
                let mean = generation.mean.mean();
                on_event(generation.id, Event::Embedding { mean });
                FinishReason::Stop
            }
            Scores::None | Scores::Logits => FinishReason::Length,
        };
        generation.note_time(now);
        let mut finish = generation.finish(reason, on_event);
        finish.stats.load_s = self.load_s;
        let name: GenerationId = generation.id;
        on_event(name, Event::Finished(&finish));
        true
    }
}
