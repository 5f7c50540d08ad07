//! One answer in the making.

use std::sync::Arc;
use std::time::Duration;

use lapidary_backend::{DrawRule, Mask};
use lapidary_text::{
    AnswerParser, Delta, Prompt, SoftRun, StopMatcher, TokenConstraint, Tokenizer,
};

use crate::draft::Guesses;
use crate::error::{Error, Result};
use crate::pages::Held;
use crate::request::{CancelToken, Event, Finish, FinishReason, GenerationId, Logprobs, Request};
use crate::sampler::{History, SamplingParams};
use crate::scheduler::{Scores, Sequence, Tower};
use crate::score::Mean;
use crate::soft::SoftUse;
use crate::stats::Stats;
use crate::thinking::ThinkingClock;

/// The most tokens that are kept for closing what a grammar has open.
const CLOSING: usize = 256;

/// The state of a generation from its submission to its end, but for its tokens.
pub(crate) struct Generation {
    pub(crate) id: GenerationId,
    pub(crate) cancel: CancelToken,
    pub(crate) params: SamplingParams,
    pub(crate) history: History,
    /// Soft tokens of the prompt, and their rows once they are made.
    pub(crate) soft: Vec<SoftRun>,
    pub(crate) soft_rows: Vec<Option<Arc<Vec<f32>>>>,
    constraint: Option<Box<dyn TokenConstraint>>,
    /// What the constraint said of the next token.
    mask: Vec<u32>,
    has_mask: bool,
    /// Likeliest tokens to be shown with each.
    pub(crate) n_logprobs: Option<usize>,
    /// Likeliest tokens to be shown with each of the prompt.
    pub(crate) n_prompt_logprobs: Option<usize>,
    /// Of the prompt's rows, if its embedding is wanted.
    pub(crate) mean: Mean,
    thinking: Option<ThinkingClock>,
    pub(crate) guesses: Guesses,
    /// The row that the newest token came from, if a drafter goes on from it; empty if nobody knows.
    pub(crate) hidden: Vec<f32>,
    /// When it ends with what there is.
    deadline: Option<Duration>,
    prompt_len: usize,
    budget: usize,
    n_new: usize,
    stop_ids: Vec<u32>,
    /// `None` without a tokenizer: the answer is tokens alone.
    parser: Option<AnswerParser>,
    stop: StopMatcher,
    /// Scratch: what may be shown.
    shown: String,
    pub(crate) reused: usize,
    /// Time that making soft rows took.
    pub(crate) encode: Duration,
    times: Times,
}

struct Times {
    submitted: Duration,
    started: Option<Duration>,
    first: Option<Duration>,
    last: Option<Duration>,
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
    /// Whether embeddings can be had.
    pub(crate) has_hidden: bool,
}

/// A token that was sampled, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampled<'a> {
    pub(crate) id: u32,
    pub(crate) logprobs: Option<&'a Logprobs>,
    pub(crate) now: Duration,
}

impl Generation {
    /// Checks a request. Nothing after this can fail by the request's fault.
    pub(crate) fn sequence(
        id: GenerationId,
        request: Request,
        cancel: CancelToken,
        (seed, now): (u64, Duration),
        limits: &Limits<'_>,
    ) -> Result<Sequence<Self>> {
        request.check(limits.max_context, limits.vocab_size)?;
        let Request { prompt, mut params, max_new, stop, mut stop_ids, parser, .. } = request;
        let Prompt { tokens, soft } = prompt;
        if request.embed && !limits.has_hidden {
            let what = "this model's program gives no hidden rows, so there are no embeddings";
            return Err(Error::param("embed", what));
        }
        let blocks = limits.soft.check(&soft, tokens.len(), limits.max_block)?;
        if !stop.is_empty() && limits.tokenizer.is_none() {
            return Err(lapidary_text::Error::NoTokenizer.into());
        }
        params.seed = Some(params.seed.unwrap_or(seed));
        params.suppress.extend_from_slice(limits.suppress_ids);
        if !request.ignore_eos {
            stop_ids.extend_from_slice(limits.eos_ids);
        }
        let scores = match (request.embed, request.prompt_logprobs) {
            (true, _) => Scores::Hidden,
            (false, Some(_)) => Scores::Logits,
            (false, None) => Scores::None,
        };
        let max_new = if request.embed { 0 } else { max_new };
        let budget = max_new.min(limits.max_context - tokens.len());
        let history = match params.uses_history() {
            true => History::new(&tokens, budget),
            false => History::default(),
        };
        let prompt_len = tokens.len();
        let mut all = Vec::with_capacity(prompt_len + budget);
        all.extend_from_slice(&tokens);
        let keys = blocks.keys(&soft);
        let towers = soft.iter().map(|run| Tower { range: run.range(), ready: false }).collect();
        let is_held = request.constraint.is_some();
        let generation = Generation {
            id,
            cancel,
            params,
            history,
            soft_rows: vec![None; soft.len()],
            soft,
            constraint: request.constraint,
            mask: Vec::new(),
            has_mask: false,
            n_logprobs: request.logprobs,
            n_prompt_logprobs: request.prompt_logprobs,
            mean: Mean::default(),
            // Without a parser nobody knows what is thought.
            thinking: match &parser {
                Some(_) => request.thinking.map(|limit| ThinkingClock::new(limit, budget, is_held)),
                None => None,
            },
            guesses: Guesses::default(),
            hidden: Vec::new(),
            deadline: request.deadline.map(|after| now.saturating_add(after)),
            prompt_len,
            budget,
            n_new: 0,
            stop_ids,
            parser: parser.or_else(|| {
                limits.tokenizer.map(|t| AnswerParser::new(None, t, request.keep_special))
            }),
            stop: StopMatcher::new(stop)?,
            shown: String::with_capacity(256),
            reused: 0,
            encode: Duration::ZERO,
            times: Times { submitted: now, started: None, first: None, last: None },
        };
        Ok(Sequence {
            id: id.0,
            tokens: all,
            prompt_len,
            soft: keys,
            blocks,
            scope: request.scope,
            towers,
            data: generation,
            held: Held::default(),
            reused: None,
            scores,
            scored: 0,
        })
    }

    /// Notes that the first of its tokens are about to be run.
    pub(crate) fn begin(&mut self, reused: usize, now: Duration) {
        if self.times.started.is_none() {
            self.reused = reused;
            self.times.started = Some(now);
        }
    }

    /// Whether candidates are enough to choose the next token, whatever it is: then a device may
    /// draw it.
    pub(crate) fn may_be_drawn(&self) -> bool {
        self.constraint.is_none() && self.n_candidates().is_some()
    }

    /// How many of the largest logits are enough; `None` if all are needed.
    pub(crate) fn n_candidates(&self) -> Option<usize> {
        let enough = self.params.n_candidates()?;
        Some(enough.max(self.n_logprobs.unwrap_or(0)))
    }

    /// The rule by which the token after `position` tokens is drawn.
    pub(crate) fn rule(&self, position: usize) -> DrawRule {
        DrawRule {
            temperature: self.params.temperature,
            top_k: self.params.top_k,
            top_p: self.params.top_p,
            min_p: self.params.min_p,
            seed: self.params.seed.unwrap_or(0),
            position: position as u32,
        }
    }

    /// Asks the constraint what may come next.
    pub(crate) fn ask_constraint(&mut self) {
        self.mask.clear();
        // What can't be cut is closed while there is room for it.
        if self.budget.saturating_sub(self.n_new) <= (self.budget / 4).min(CLOSING) {
            self.constraint.iter_mut().for_each(|c| c.wind_down());
        }
        let allowed = self.constraint.as_mut().and_then(|c| c.mask());
        self.has_mask = allowed.is_some();
        self.mask.extend_from_slice(allowed.unwrap_or_default());
    }

    /// What may come next.
    pub(crate) fn mask(&self) -> Mask<'_> {
        self.has_mask.then_some(&self.mask)
    }

    /// The token that has to come next, whatever is likely.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.thinking.as_ref().and_then(ThinkingClock::forced)
    }

    /// Whether no more tokens may come.
    pub(crate) fn is_full(&self) -> bool {
        self.n_new >= self.budget
    }

    /// Whether a token of the prompt is one, and not the place of something soft.
    pub(crate) fn is_token(&self, position: usize) -> bool {
        !self.soft.iter().any(|run| run.range().contains(&position))
    }

    /// Whether its time is over.
    pub(crate) fn is_late(&self, now: Duration) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether its time may be over some day.
    pub(crate) fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    /// Notes when what was wanted was there, without a token.
    pub(crate) fn note_time(&mut self, now: Duration) {
        self.times.first.get_or_insert(now);
        self.times.last = Some(now);
    }

    /// Tokens that there is room for.
    pub(crate) fn n_left(&self) -> usize {
        self.budget.saturating_sub(self.n_new)
    }

    /// Whether what may come next depends on what came.
    pub(crate) fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Whether one more token is the last that there is room for.
    pub(crate) fn is_last(&self, more: usize) -> bool {
        self.n_new + more >= self.budget
    }

    /// Takes a sampled token; returns the end if this is it.
    pub(crate) fn push(
        &mut self,
        Sampled { id, logprobs, now }: Sampled<'_>,
        on_event: &mut dyn FnMut(GenerationId, Event<'_>),
    ) -> Option<Finish> {
        self.note_time(now);
        self.n_new += 1;
        self.guesses.note_token();
        if self.stop_ids.contains(&id) {
            let mut finish = self.finish(FinishReason::Stop, on_event);
            finish.stop_id = Some(id);
            finish.stop_logprobs = logprobs.cloned();
            return Some(finish);
        }
        if self.params.uses_history() {
            self.history.push(id);
        }
        on_event(self.id, Event::Token { id, logprobs });
        if let Some(stop) = self.show(Some(id), on_event) {
            let mut finish = self.end(FinishReason::Stop);
            finish.stop_string = Some(stop);
            return Some(finish);
        }
        let is_thinking = self.parser.as_ref().is_some_and(AnswerParser::is_thinking);
        self.thinking.iter_mut().for_each(|clock| clock.push(is_thinking));
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id);
            if constraint.is_done() {
                return Some(self.finish(FinishReason::Stop, on_event));
            }
        }
        self.is_full().then(|| self.finish(FinishReason::Length, on_event))
    }

    /// Shows what was held back and ends.
    pub(crate) fn finish(
        &mut self,
        reason: FinishReason,
        on_event: &mut dyn FnMut(GenerationId, Event<'_>),
    ) -> Finish {
        if let Some(stop) = self.show(None, on_event) {
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

    /// Shows what a token adds, or what was held back if none is to come; returns the stop string
    /// that is complete. Stops are looked for in each stretch of text, and in text alone.
    fn show(
        &mut self,
        token: Option<u32>,
        on_event: &mut dyn FnMut(GenerationId, Event<'_>),
    ) -> Option<usize> {
        let (parser, stop, shown) = (self.parser.as_mut()?, &mut self.stop, &mut self.shown);
        let mut stopped = None;
        let mut take = |delta: Delta<'_>| {
            if stopped.is_some() {
                return;
            }
            shown.clear();
            match delta {
                Delta::Text(text) => stopped = stop.push(text, shown),
                Delta::Thinking(_) | Delta::Call(_) => stop.flush(shown),
            }
            if !shown.is_empty() {
                on_event(self.id, Event::Text { text: shown });
            }
            match delta {
                Delta::Text(_) => {}
                Delta::Thinking(text) => on_event(self.id, Event::Thinking { text }),
                Delta::Call(call) => on_event(self.id, Event::Call(call)),
            }
        };
        match token {
            Some(id) => parser.push(id, &mut take),
            None => parser.finish(&mut take),
        }
        stopped
    }

    fn end(&self, reason: FinishReason) -> Finish {
        let seconds = |from: Option<Duration>, to: Option<Duration>| match (from, to) {
            (Some(from), Some(to)) => Some(to.saturating_sub(from).as_secs_f64()),
            _ => None,
        };
        let t = &self.times;
        let encode_s = self.encode.as_secs_f64();
        let stats = Stats {
            load_s: None,
            first_token_s: seconds(Some(t.submitted), t.first),
            prompt_tokens: self.prompt_len,
            reused_tokens: self.reused,
            encode_s,
            prefill_s: (seconds(t.started, t.first).unwrap_or(0.0) - encode_s).max(0.0),
            new_tokens: self.n_new,
            decode_s: seconds(t.first, t.last).unwrap_or(0.0),
            seed: self.params.seed.unwrap_or(0),
            draft_calls: self.guesses.tally.calls,
            drafted_tokens: self.guesses.tally.drafted,
            accepted_tokens: self.guesses.tally.accepted,
        };
        Finish { reason, stop_id: None, stop_logprobs: None, stop_string: None, stats }
    }
}

/// Every id has a row.
pub(crate) fn check_ids(tokens: &[u32], vocab_size: u32) -> Result<()> {
    match tokens.iter().find(|id| **id >= vocab_size) {
        Some(id) => Err(Error::TokenId { id: *id, vocab_size }),
        None => Ok(()),
    }
}
