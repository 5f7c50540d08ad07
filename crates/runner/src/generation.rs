//! One answer in the making.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::media::{Prompt, SoftRun};
use crate::request::{CancelToken, Event, Finish, FinishReason, GenerationId, Request};
use crate::sampler::{History, SamplingParams};
use crate::soft::{Blocks, SoftUse};
use crate::stats::{Stats, peak_memory_bytes};
use crate::stop::StopMatcher;
use crate::tokenizer::{StreamDecoder, Tokenizer};

/// The state of a generation from its submission to its end.
pub(crate) struct Generation {
    pub(crate) id: GenerationId,
    pub(crate) cancel: CancelToken,
    pub(crate) scope: u64,
    pub(crate) params: SamplingParams,
    pub(crate) history: History,
    /// Prompt and answer so far.
    pub(crate) tokens: Vec<u32>,
    /// Soft tokens of the prompt, and their rows once they are made.
    pub(crate) soft: Vec<SoftRun>,
    pub(crate) soft_rows: Vec<Option<Arc<Vec<f32>>>>,
    pub(crate) blocks: Blocks,
    /// The slot; meaningful once it is admitted.
    pub(crate) slot: usize,
    /// Tokens that the current call holds, and the row of logits that it asks for.
    pub(crate) packed: usize,
    pub(crate) row: Option<usize>,
    prompt_len: usize,
    budget: usize,
    stop_ids: Vec<u32>,
    /// `None` without a tokenizer: the answer is tokens alone.
    decoder: Option<StreamDecoder>,
    stop: StopMatcher,
    /// Scratch: what the decoder gave, and what may be shown.
    decoded: String,
    shown: String,
    reused: usize,
    /// Seconds that making soft rows took.
    pub(crate) encode_s: f64,
    times: Times,
}

struct Times {
    submitted: Instant,
    started: Option<Instant>,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// What a request is checked against.
pub(crate) struct Limits<'a> {
    pub(crate) vocab_size: u32,
    pub(crate) max_context: usize,
    /// The most tokens of one block.
    pub(crate) max_block: usize,
    pub(crate) soft: SoftUse<'a>,
    pub(crate) eos_ids: &'a [u32],
    pub(crate) suppress_ids: &'a [u32],
    pub(crate) tokenizer: Option<&'a Tokenizer>,
}

impl Generation {
    /// Checks a request. Nothing after this can fail by the request's fault.
    pub(crate) fn new(
        id: GenerationId,
        request: Request,
        cancel: CancelToken,
        seed: u64,
        limits: &Limits<'_>,
    ) -> Result<Self> {
        let Request { prompt, mut params, max_new, stop, mut stop_ids, .. } = request;
        let Prompt { tokens, soft } = prompt;
        check_prompt(&tokens, limits)?;
        let blocks = limits.soft.check(&soft, tokens.len(), limits.max_block)?;
        params.check(limits.vocab_size)?;
        if max_new == 0 {
            return Err(Error::param("max_tokens", "0 tokens were asked for; ask for at least 1"));
        }
        if !stop.is_empty() && limits.tokenizer.is_none() {
            return Err(Error::NoTokenizer);
        }
        params.seed = Some(params.seed.unwrap_or(seed));
        params.suppress.extend_from_slice(limits.suppress_ids);
        if !request.ignore_eos {
            stop_ids.extend_from_slice(limits.eos_ids);
        }
        let budget = max_new.min(limits.max_context - tokens.len());
        let history = match params.uses_history() {
            true => History::new(&tokens, budget),
            false => History::default(),
        };
        let prompt_len = tokens.len();
        let mut all = Vec::with_capacity(prompt_len + budget);
        all.extend_from_slice(&tokens);
        Ok(Generation {
            id,
            cancel,
            scope: request.scope,
            params,
            history,
            tokens: all,
            soft_rows: vec![None; soft.len()],
            soft,
            blocks,
            slot: 0,
            packed: 0,
            row: None,
            prompt_len,
            budget,
            stop_ids,
            decoder: limits.tokenizer.map(|t| t.stream(request.keep_special)),
            stop: StopMatcher::new(stop)?,
            decoded: String::with_capacity(256),
            shown: String::with_capacity(256),
            reused: 0,
            encode_s: 0.0,
            times: Times { submitted: Instant::now(), started: None, first: None, last: None },
        })
    }

    /// Takes a slot that holds the first `reused` tokens.
    pub(crate) fn admit(&mut self, slot: usize, reused: usize) {
        self.slot = slot;
        self.reused = reused;
        self.times.started = Some(Instant::now());
    }

    /// Prompt and longest answer.
    pub(crate) fn max_len(&self) -> usize {
        self.prompt_len + self.budget
    }

    /// Takes a sampled token; returns the end if this is it.
    pub(crate) fn push(
        &mut self,
        id: u32,
        on_event: &mut dyn FnMut(GenerationId, Event<'_>),
    ) -> Option<Finish> {
        let now = Instant::now();
        self.times.first.get_or_insert(now);
        self.times.last = Some(now);
        self.tokens.push(id);
        if self.stop_ids.contains(&id) {
            let mut finish = self.finish(FinishReason::Stop, on_event);
            finish.stop_id = Some(id);
            return Some(finish);
        }
        if self.params.uses_history() {
            self.history.push(id);
        }
        on_event(self.id, Event::Token { id });
        if let Some(decoder) = &mut self.decoder {
            self.decoded.clear();
            decoder.push(id, &mut self.decoded);
            if let Some(stop) = self.show_decoded(on_event) {
                let mut finish = self.end(FinishReason::Stop);
                finish.stop_string = Some(stop);
                return Some(finish);
            }
        }
        let new = self.tokens.len() - self.prompt_len;
        (new >= self.budget).then(|| self.finish(FinishReason::Length, on_event))
    }

    /// Shows what was held back and ends.
    pub(crate) fn finish(
        &mut self,
        reason: FinishReason,
        on_event: &mut dyn FnMut(GenerationId, Event<'_>),
    ) -> Finish {
        self.decoded.clear();
        if let Some(decoder) = &mut self.decoder {
            decoder.flush(&mut self.decoded);
        }
        if let Some(stop) = self.show_decoded(on_event) {
            let mut finish = self.end(FinishReason::Stop);
            finish.stop_string = Some(stop);
            return finish;
        }
        self.shown.clear();
        self.stop.flush(&mut self.shown);
        if !self.shown.is_empty() {
            on_event(self.id, Event::Text { text: &self.shown });
        }
        self.end(reason)
    }

    fn show_decoded(&mut self, on_event: &mut dyn FnMut(GenerationId, Event<'_>)) -> Option<usize> {
        self.shown.clear();
        let stop = self.stop.push(&self.decoded, &mut self.shown);
        if !self.shown.is_empty() {
            on_event(self.id, Event::Text { text: &self.shown });
        }
        stop
    }

    fn end(&self, reason: FinishReason) -> Finish {
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => Some(to.duration_since(from).as_secs_f64()),
            _ => None,
        };
        let t = &self.times;
        let stats = Stats {
            load_s: None,
            first_token_s: seconds(Some(t.submitted), t.first),
            prompt_tokens: self.prompt_len,
            reused_tokens: self.reused,
            encode_s: self.encode_s,
            prefill_s: (seconds(t.started, t.first).unwrap_or(0.0) - self.encode_s).max(0.0),
            new_tokens: self.tokens.len() - self.prompt_len,
            decode_s: seconds(t.first, t.last).unwrap_or(0.0),
            seed: self.params.seed.unwrap_or(0),
            peak_memory_bytes: peak_memory_bytes(),
        };
        Finish { reason, stop_id: None, stop_string: None, stats }
    }
}

/// `1 ≤ prompt < max_context`, and every id has a row.
fn check_prompt(tokens: &[u32], limits: &Limits<'_>) -> Result<()> {
    if tokens.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if tokens.len() >= limits.max_context {
        return Err(Error::ContextLength { prompt: tokens.len(), max_context: limits.max_context });
    }
    check_ids(tokens, limits.vocab_size)
}

/// Every id has a row.
pub(crate) fn check_ids(tokens: &[u32], vocab_size: u32) -> Result<()> {
    match tokens.iter().find(|id| **id >= vocab_size) {
        Some(id) => Err(Error::TokenId { id: *id, vocab_size }),
        None => Ok(()),
    }
}
