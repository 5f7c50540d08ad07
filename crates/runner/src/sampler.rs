//! From one row of logits to one token.
//!
//! Order: mask → penalties and bias → temperature → top-k → top-p → min-p → draw.
//! Temperature 0 is argmax over the penalised logits; the lowest id wins ties everywhere.
//!
//! The draw is `lapidary_backend_kit::draw`: it has no state, so the same logits, seed and position
//! give the same token in any batch, in any order of candidates, and on any device.

mod largest;

use std::cmp::Ordering;
use std::collections::HashMap;

use lapidary_backend::{Candidate, Mask};
use lapidary_backend_kit::draw::gumbel_max;
use lapidary_program::Metadata;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How tokens are chosen. [`SamplingParams::of`] gives what the model's makers recommend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// 0 is greedy; at most 100.
    pub temperature: f32,
    /// Keeps the k best; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest best that together have this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps what is at least this fraction of the best probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; 1 is none.
    pub repetition_penalty: f32,
    /// Taken once from the logits of tokens in the answer; −2 to 2.
    pub presence_penalty: f32,
    /// Taken once per occurrence from the logits of tokens in the answer; −2 to 2.
    pub frequency_penalty: f32,
    /// The key of the draw; `None` for one that is made up.
    pub seed: Option<u64>,
    /// Added to logits; −100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen, besides those that the program suppresses.
    pub suppress: Vec<u32>,
}

/// Chooses tokens; keeps its scratch memory from call to call.
#[derive(Default)]
pub struct Sampler {
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
}

/// How often tokens were seen, for the penalties.
#[derive(Default)]
pub struct History {
    seen: HashMap<u32, Seen>,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    in_answer: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
            logit_bias: vec![],
            suppress: vec![],
        }
    }
}

impl SamplingParams {
    /// What the model's makers recommend.
    pub fn of(metadata: &Metadata) -> Self {
        let s = metadata.sampling;
        SamplingParams {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            ..Self::default()
        }
    }

    /// The most likely token, always.
    pub fn greedy() -> Self {
        SamplingParams { temperature: 0.0, ..Self::default() }
    }

    /// Checks every number against its range.
    pub fn check(&self, vocab_size: u32) -> Result<()> {
        let range = |param, x: f32, low: f32, high: f32| {
            if (low..=high).contains(&x) {
                return Ok(());
            }
            Err(Error::param(param, format!("{x} is not within {low} to {high}")))
        };
        range("temperature", self.temperature, 0.0, 100.0)?;
        range("min_p", self.min_p, 0.0, 1.0)?;
        range("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(Error::param("top_p", format!("{} is not in (0, 1]", self.top_p)));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty <= 100.0) {
            let x = self.repetition_penalty;
            return Err(Error::param("repetition_penalty", format!("{x} is not in (0, 100]")));
        }
        for (id, bias) in &self.logit_bias {
            range("logit_bias", *bias, -100.0, 100.0)?;
            if *id >= vocab_size {
                return Err(Error::param("logit_bias", format!("there is no token {id}")));
            }
        }
        match self.suppress.iter().find(|id| **id >= vocab_size) {
            Some(id) => Err(Error::param("suppress", format!("there is no token {id}"))),
            None => Ok(()),
        }
    }

    /// Whether the choice depends on tokens seen before.
    pub fn uses_history(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }
}

impl History {
    /// The tokens of a prompt; room for `more` tokens of the answer.
    pub fn new(prompt: &[u32], more: usize) -> Self {
        let mut seen = HashMap::with_capacity(prompt.len().saturating_add(more));
        seen.extend(prompt.iter().map(|id| (*id, Seen::default())));
        History { seen }
    }

    /// Counts a token of the answer.
    pub fn push(&mut self, id: u32) {
        let seen = self.seen.entry(id).or_default();
        seen.in_answer = seen.in_answer.saturating_add(1);
    }
}

impl Sampler {
    /// Chooses the token at `position` from one row of logits.
    ///
    /// `params` were checked; `params.seed` must be set unless the temperature is 0.
    /// A NaN or an infinity among the logits is an error ([`Error::NonFiniteLogits`]), as is a row
    /// in which all is suppressed ([`Error::AllMasked`]).
    pub fn sample(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: &History,
        position: u32,
    ) -> Result<u32> {
        self.sample_masked(logits, None, params, history, position)
    }

    /// The same among tokens that a mask leaves, if there is one.
    pub fn sample_masked(
        &mut self,
        logits: &[f32],
        mask: Mask<'_>,
        params: &SamplingParams,
        history: &History,
        position: u32,
    ) -> Result<u32> {
        if !all_finite(logits) {
            return Err(Error::NonFiniteLogits { node: None });
        }
        let adjust = mask.is_some()
            || params.uses_history()
            || !params.logit_bias.is_empty()
            || !params.suppress.is_empty();
        let mut adjusted = std::mem::take(&mut self.adjusted);
        if adjust {
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            mask.into_iter().for_each(|mask| apply_mask(&mut adjusted, mask));
            apply_penalties(&mut adjusted, params, history);
        }
        let id = self.choose(if adjust { &adjusted } else { logits }, params, position);
        self.adjusted = adjusted;
        id
    }

    fn choose(&mut self, logits: &[f32], params: &SamplingParams, position: u32) -> Result<u32> {
        if params.is_greedy() {
            return argmax(logits).ok_or(Error::AllMasked);
        }
        self.keep_top_k(logits, params.top_k);
        if self.candidates.len() <= HEAD {
            // Sums over candidates then do not depend on how these were found.
            self.candidates.sort_unstable_by(by_rank);
        }
        self.draw_kept(params, position)
    }

    /// Draws from the candidates, after top-p and min-p.
    fn draw_kept(&mut self, params: &SamplingParams, position: u32) -> Result<u32> {
        let inverse = 1.0 / f64::from(params.temperature);
        let best = self.candidates.iter().fold(f32::NEG_INFINITY, |m, c| m.max(c.value));
        if params.top_p < 1.0 {
            self.keep_top_p(best, inverse, f64::from(params.top_p));
        }
        if params.min_p > 0.0 {
            let least = f64::from(params.min_p).ln();
            self.candidates.retain(|c| f64::from(c.value - best) * inverse >= least);
        }
        let seed = params.seed.unwrap_or(0);
        gumbel_max(&self.candidates, best, inverse, seed, position).ok_or(Error::AllMasked)
    }

    /// Fills `candidates` with the `k` best, lowest ids among equals, in no particular order.
    fn keep_top_k(&mut self, logits: &[f32], k: u32) {
        self.candidates.clear();
        let k = if k == 0 { logits.len() } else { logits.len().min(k as usize) };
        // A buffer of some k is cut back to k whenever it is full. What does not beat the least
        // of the k kept so far is skipped: it has a greater id, so a tie is lost as well.
        let room = (2 * k).max(1024).min(logits.len());
        self.candidates.reserve(room);
        let mut least = f32::NEG_INFINITY;
        for (i, block) in logits.chunks(BLOCK).enumerate() {
            if greatest(block) <= least {
                continue;
            }
            for (j, logit) in block.iter().enumerate() {
                if *logit > least {
                    self.candidates
                        .push(Candidate { value: *logit, index: (i * BLOCK + j) as u32 });
                }
                if self.candidates.len() == room && room > k {
                    self.cut(k);
                    least = self.candidates.iter().fold(f32::INFINITY, |m, c| m.min(c.value));
                }
            }
        }
        self.cut(k);
    }

    /// Keeps the fewest best whose probabilities add up to `p`.
    fn keep_top_p(&mut self, best: f32, inverse: f64, p: f64) {
        let weight = |c: &Candidate| (f64::from(c.value - best) * inverse).exp();
        let wanted = p * self.candidates.iter().map(weight).sum::<f64>();
        // Few candidates hold most of the mass: sort ever larger heads, not the whole.
        let (mut sorted, mut mass) = (0, 0.0);
        let mut head = HEAD;
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            let n = head.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n - 1, by_rank);
            }
            rest[..n].sort_unstable_by(by_rank);
            for (i, c) in rest[..n].iter().enumerate() {
                mass += weight(c);
                if mass >= wanted {
                    self.candidates.truncate(sorted + i + 1);
                    return;
                }
            }
            sorted += n;
            head *= 8;
        }
    }

    fn cut(&mut self, k: usize) {
        if self.candidates.len() > k {
            self.candidates.select_nth_unstable_by(k - 1, by_rank);
            self.candidates.truncate(k);
        }
    }
}

/// Candidates that are few enough to be sorted.
const HEAD: usize = 128;

/// Logits that are looked at together.
const BLOCK: usize = 64;

/// The greatest of some numbers that are not NaN. Lane by lane, so that the compiler can vectorise.
fn greatest(xs: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (blocks, rest) = xs.as_chunks::<16>();
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |m, x| m.max(*x))
}

/// Best first, then lowest id.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    // None is NaN, and −0 equals 0.
    b.value.partial_cmp(&a.value).unwrap_or(Ordering::Equal).then(a.index.cmp(&b.index))
}

/// Whether no number is NaN or infinite.
pub(crate) fn all_finite(xs: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    // Without an early exit inside a block, so that the compiler can vectorise it.
    xs.chunks(4096).all(|c| {
        c.iter().fold(0u32, |bad, x| bad | u32::from(x.to_bits() & EXPONENT == EXPONENT)) == 0
    })
}

/// The best that is not suppressed; the lowest id wins ties.
fn argmax(logits: &[f32]) -> Option<u32> {
    let best = greatest(logits);
    if best == f32::NEG_INFINITY {
        return None;
    }
    logits.iter().position(|x| *x == best).map(|i| i as u32)
}

fn apply_mask(logits: &mut [f32], mask: &[u32]) {
    for (i, x) in logits.iter_mut().enumerate() {
        let word = mask.get(i / 32).copied().unwrap_or(0);
        if word >> (i % 32) & 1 == 0 {
            *x = f32::NEG_INFINITY;
        }
    }
}

fn apply_penalties(logits: &mut [f32], params: &SamplingParams, history: &History) {
    if params.uses_history() {
        for (id, seen) in &history.seen {
            let Some(x) = logits.get_mut(*id as usize) else { continue };
            if *x > 0.0 {
                *x /= params.repetition_penalty;
            } else {
                *x *= params.repetition_penalty;
            }
            if seen.in_answer > 0 {
                *x -= params.presence_penalty + params.frequency_penalty * seen.in_answer as f32;
            }
        }
    }
    for (id, bias) in &params.logit_bias {
        if let Some(x) = logits.get_mut(*id as usize) {
            *x += bias;
        }
    }
    for id in &params.suppress {
        if let Some(x) = logits.get_mut(*id as usize) {
            *x = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests;
