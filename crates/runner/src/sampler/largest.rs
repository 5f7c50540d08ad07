//! From the largest logits of a row to one token: the same token as from the whole row.

use lapidary_backend::Candidate;

use super::{Sampler, SamplingParams};
use crate::error::{Error, Result};

impl SamplingParams {
    /// How many of the largest logits are enough to choose from; `None` if all are needed. Tokens
    /// that are suppressed may be among the largest, so as many more are needed.
    pub fn n_candidates(&self) -> Option<usize> {
        if self.uses_history() || !self.logit_bias.is_empty() {
            return None;
        }
        let kept = match self.top_k {
            _ if self.is_greedy() => 1,
            0 => return None,
            k => k as usize,
        };
        Some(kept.saturating_add(self.suppress.len()))
    }
}

impl Sampler {
    /// Chooses the token at `position` from the largest logits of a row alone, of which there are
    /// [`SamplingParams::n_candidates`] or all. The token is the one that [`Self::sample`] chooses.
    pub fn sample_largest(
        &mut self,
        largest: &[Candidate],
        params: &SamplingParams,
        position: u32,
    ) -> Result<u32> {
        if largest.iter().any(|found| found.value.is_nan() || found.value == f32::INFINITY) {
            return Err(Error::NonFiniteLogits { node: None });
        }
        // Places that nothing is left for have −∞.
        let kept = largest.iter().filter(|found| found.value > f32::NEG_INFINITY);
        let mut kept = kept.filter(|found| !params.suppress.contains(&found.index)).copied();
        if params.is_greedy() {
            return kept.next().map(|best| best.index).ok_or(Error::AllMasked);
        }
        self.candidates.clear();
        self.candidates.extend(kept.take(params.top_k as usize));
        self.draw_kept(params, position)
    }
}
