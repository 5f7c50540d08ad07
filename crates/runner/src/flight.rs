//! Calls that were submitted, and the one that may follow before its tokens are known.
//!
//! A device that draws tokens can be given the next call before the host has seen them: it takes its
//! tokens from where they were drawn. The host draws again from the same candidates, and what it
//! draws counts. Where it finds another token, or the answer has ended, what the call ahead says of
//! that sequence is left out of account: the sequence goes on from its true tokens, and the key that
//! was written ahead is written again.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use lapidary_backend::{Draw, DrawRule, Mask, Ticket, TicketRows, TopK, Want, Wanted};
use lapidary_program::{method, output};

use crate::batch::{How, guard, recycle};
use crate::generation::Generation;
use crate::runner::Runner;
use crate::scheduler::{Part, Scores, Sequence};

/// A call that was submitted.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) ticket: Ticket,
    pub(crate) parts: Vec<FlightPart>,
    pub(crate) n_tokens: usize,
    pub(crate) submitted: Duration,
    /// Whether the device draws a token from every row.
    pub(crate) draws: bool,
    /// The call that its tokens come from.
    pub(crate) fed_by: Option<Ticket>,
}

/// Tokens of one sequence in a call that was submitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightPart {
    pub(crate) part: Part,
    /// Its first row, if rows of its own are wanted.
    pub(crate) first: u32,
    /// The row of logits that the next token comes from, if it asks for one.
    pub(crate) row: Option<u32>,
    /// Guesses that it brings along; after each there is one more row.
    pub(crate) guesses: usize,
    /// Whether its tokens turned out to be others.
    pub(crate) stale: bool,
}

/// What is wanted of the logits of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Whole,
    TopK(usize),
    Draw(usize),
}

/// Memory that is kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    parts: Vec<Vec<FlightPart>>,
    masks: Vec<Mask<'static>>,
    rules: Vec<DrawRule>,
    rows: Vec<u32>,
}

impl Runner {
    /// What is wanted of the logits of a call with these parts.
    fn kind(&self, parts: &[FlightPart]) -> Kind {
        let abilities = self.engine.abilities();
        let asking = || {
            let parts = parts.iter().filter(|p| p.row.is_some());
            parts.filter_map(|p| self.scheduler.get(p.part.id)).map(|s| &s.data)
        };
        // Every token of a prompt may be anywhere in its row.
        if parts.iter().any(|p| p.part.scores > 0) {
            return Kind::Whole;
        }
        // What may come after a guess is not known when the call is made.
        let is_constrained =
            |id| self.scheduler.get(id).is_some_and(|s: &Sequence<_>| s.data.is_constrained());
        if parts.iter().any(|p| p.guesses > 0 && is_constrained(p.part.id)) {
            return Kind::Whole;
        }
        let mut k = 0;
        for generation in asking() {
            match generation.n_candidates() {
                Some(n) => k = k.max(n),
                None => return Kind::Whole,
            }
        }
        if !(1..=abilities.max_top_k).contains(&k) {
            return Kind::Whole;
        }
        // A call may follow if all that run would be in it.
        let all =
            parts.iter().all(|p| p.row.is_some()) && parts.len() == self.scheduler.running().len();
        let draws = abilities.max_in_flight >= 2
            && all
            && asking().all(Generation::may_be_drawn)
            && asking().all(|g| self.drafting.is_off() || g.guesses.is_resting())
            && asking().any(|generation| !generation.is_last(1));
        match draws {
            true => Kind::Draw(k),
            false if abilities.prefers_top_k => Kind::TopK(k),
            false => Kind::Whole,
        }
    }

    /// Submits what is in the batch, which holds these parts.
    pub(crate) fn submit_batch(
        &mut self,
        parts: Vec<FlightPart>,
        fed: Option<TicketRows<'_>>,
    ) -> Result<(), (Vec<FlightPart>, crate::Error)> {
        let kind = self.kind(&parts);
        let now = self.clock.now();
        let n_tokens = self.batch.len();
        let mut masks: Vec<Mask<'_>> = recycle(std::mem::take(&mut self.scratch.masks));
        let mut rules = std::mem::take(&mut self.scratch.rules);
        rules.clear();
        let scheduler = &self.scheduler;
        let found = |p: &FlightPart| scheduler.get(p.part.id);
        let mut logsumexp = false;
        for (part, sequence) in parts.iter().filter_map(|p| Some((p, found(p)?))) {
            if part.row.is_some() {
                let after = part.part.start + part.part.len;
                for position in after..=after + part.guesses {
                    masks.push(sequence.data.mask());
                    rules.push(sequence.data.rule(position));
                }
                logsumexp |= sequence.data.n_logprobs.is_some();
            }
        }
        let has_masks = masks.iter().any(Option::is_some);
        let top = |k| TopK { k, masks: if has_masks { &masks } else { &[] }, logsumexp };
        let want = match kind {
            Kind::Whole => Want::Whole,
            Kind::TopK(k) => Want::TopK(top(k)),
            Kind::Draw(k) => Want::Draw(Draw { top: top(k), rules: &rules }),
        };
        let hidden = parts.iter().filter_map(found).any(|s| s.scores == Scores::Hidden);
        let rows = Wanted::whole(output::HIDDEN);
        let wants = [Wanted { output: output::LOGITS, want }, rows];
        // A drafter goes on from the row that a token came from.
        let drafts = self.drafting.uses_model() && !matches!(kind, Kind::Draw(_));
        let asks = parts.iter().any(|p| p.row.is_some());
        let wants = match asks || parts.iter().any(|p| p.part.scores > 0) {
            false => &[],
            true if hidden => &wants[1..],
            true if drafts && asks => &wants[..],
            true => &wants[..1],
        };
        // A call for one generation ends when that is cancelled.
        let stop = match parts.as_slice() {
            [only] => found(only).map(|s| &s.data.cancel.0),
            _ => None,
        };
        let held = parts.iter().filter_map(found).map(|s| &s.held);
        let how = How { wants, stop, tokens: fed, ..How::default() };
        let sent = self.batch.submit(self.engine.as_mut(), held, how);
        self.scratch.masks = recycle(masks);
        self.scratch.rules = rules;
        match sent {
            Ok(ticket) => {
                let draws = matches!(kind, Kind::Draw(_));
                let fed_by = fed.map(|rows| rows.ticket);
                let submitted = now;
                let flight = Flight { ticket, parts, n_tokens, submitted, draws, fed_by };
                self.flights.push_back(flight);
                Ok(())
            }
            Err(e) => Err((parts, e)),
        }
    }

    /// An empty list of parts.
    pub(crate) fn new_parts(&mut self) -> Vec<FlightPart> {
        self.scratch.parts.pop().unwrap_or_default()
    }

    /// Gives a list of parts back.
    pub(crate) fn done_parts(&mut self, mut parts: Vec<FlightPart>) {
        parts.clear();
        self.scratch.parts.push(parts);
    }

    /// Submits the call that follows `flight`, whose tokens nobody knows yet, if there can be one.
    pub(crate) fn send_ahead(&mut self, flight: &Flight) {
        if !flight.draws || !self.flights.is_empty() || self.scheduler.may_admit() {
            return;
        }
        let live = |s: &Sequence<Generation>| {
            flight.parts.iter().any(|p| p.part.id == s.id && p.row.is_some() && !p.stale)
        };
        if !self.scheduler.running().iter().all(live) {
            return;
        }
        let mut parts = self.new_parts();
        let mut rows = std::mem::take(&mut self.scratch.rows);
        rows.clear();
        self.batch.clear();
        for FlightPart { part, row, .. } in &flight.parts {
            let Some(sequence) = self.scheduler.get(part.id) else { continue };
            let (Some(row), false) = (*row, sequence.data.is_last(1)) else { continue };
            let start = part.start + part.len;
            if !self.scheduler.reserve(part.id, start + 1) {
                parts.clear();
                break;
            }
            self.batch.push(start, &[0]);
            rows.push(row);
            let row = Some(self.batch.ask_last() as u32);
            let part = Part { id: part.id, start, len: 1, asks: true, scores: 0 };
            parts.push(FlightPart { part, first: 0, row, guesses: 0, stale: false });
        }
        if parts.is_empty() {
            self.done_parts(parts);
        } else {
            let fed = TicketRows { ticket: flight.ticket, output: output::LOGITS, rows: &rows };
            if let Err((parts, _)) = self.submit_batch(parts, Some(fed)) {
                // The same call will be made again, and fail again if it must.
                for FlightPart { part, .. } in &parts {
                    self.scheduler.distrust(part.id, part.start);
                }
                self.done_parts(parts);
            }
        }
        self.scratch.rows = rows;
    }

    /// Notes that the next token of a sequence is not the one that the call ahead was fed.
    pub(crate) fn mark_stale(&mut self, id: u64) {
        let parts = self.flights.iter_mut().flat_map(|flight| &mut flight.parts);
        parts.filter(|p| p.part.id == id).for_each(|p| p.stale = true);
    }

    /// Forgets what calls kept on the device, once those that they feed have ended.
    pub(crate) fn release_tickets(&mut self, flight: &Flight) {
        let is_needed = self.flights.iter().any(|next| next.fed_by == Some(flight.ticket));
        let own = (flight.draws && !is_needed).then_some(flight.ticket);
        for ticket in flight.fed_by.into_iter().chain(own) {
            self.release_ticket(ticket);
        }
    }

    pub(crate) fn release_ticket(&mut self, ticket: Ticket) {
        let engine = self.engine.as_mut();
        let release = AssertUnwindSafe(|| {
            engine.release(ticket);
            Ok(())
        });
        // An engine that panics here has nothing more to tell of a call that nobody asks for.
        let _ = guard(method::FORWARD, release);
    }
}
