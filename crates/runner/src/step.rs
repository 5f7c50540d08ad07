//! One step for all generations.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use lapidary_backend::{Mask, OutputResult};
use lapidary_program::{method, output};

use crate::batch::{self, guard};
use crate::error::{Error, Result};
use crate::flight::{Flight, FlightPart};
use crate::generation::{Generation, Sampled};
use crate::logprobs;
use crate::request::{Event, FinishReason, GenerationId};
use crate::runner::Runner;
use crate::scheduler::{Part, Scores, Sequence, Work};

pub(crate) type OnEvent<'a> = dyn FnMut(GenerationId, Event<'_>) + 'a;

impl Runner {
    /// Does one call of the engine: the next token of every answer, and chunks of prompts in turns
    /// as far as there is room and time; or one tower. Returns whether generations are left.
    ///
    /// The tokens of a generation do not depend on what else is in the call, as far as the engine
    /// computes each row alike.
    pub fn step(&mut self, on_event: &mut OnEvent<'_>) -> bool {
        self.end_cancelled(on_event);
        if self.flights.is_empty() {
            match self.scheduler.plan() {
                Work::Nothing => {}
                Work::Tower { id, tower } => self.run_tower(id, tower, on_event),
                Work::Forward => {
                    self.begin_new();
                    self.copy_pages();
                    self.send(on_event);
                }
            }
        }
        if let Some(flight) = self.flights.pop_front() {
            self.send_ahead(&flight);
            self.land(flight, on_event);
        }
        // What was sent ahead of the last token of all is of no use.
        while self.scheduler.len() == 0
            && let Some(flight) = self.flights.pop_front()
        {
            self.land(flight, on_event);
        }
        for (id, error) in self.failed.drain(..) {
            on_event(id, Event::Failed(&error));
        }
        self.n_generations() > 0
    }

    fn end_cancelled(&mut self, on_event: &mut OnEvent<'_>) {
        loop {
            let mut cancelled = self.scheduler.iter().filter(|s| s.data.cancel.is_cancelled());
            let Some(id) = cancelled.next().map(|s| s.id) else { break };
            drop(cancelled);
            self.cancel(id, None, on_event);
        }
        // Most have none, and then nobody asks for the time.
        while self.scheduler.iter().any(|s| s.data.has_deadline()) {
            let now = self.clock.now();
            let Some(id) = self.scheduler.iter().find(|s| s.data.is_late(now)).map(|s| s.id) else {
                return;
            };
            self.end_early(id, None, FinishReason::Deadline, on_event);
        }
    }

    fn cancel(&mut self, id: u64, distrust: Option<usize>, on_event: &mut OnEvent<'_>) {
        self.end_early(id, distrust, FinishReason::Cancelled, on_event);
    }

    fn end_early(
        &mut self,
        id: u64,
        distrust: Option<usize>,
        reason: FinishReason,
        on_event: &mut OnEvent<'_>,
    ) {
        let Some(sequence) = self.scheduler.remove(id, distrust) else { return };
        let mut generation = sequence.data;
        let mut finish = generation.finish(reason, on_event);
        finish.stats.load_s = self.load_s;
        on_event(generation.id, Event::Finished(&finish));
    }

    fn fail(&mut self, id: u64, distrust: usize, error: Error) {
        if let Some(sequence) = self.scheduler.remove(id, Some(distrust)) {
            self.failed.push((sequence.data.id, error));
        }
    }

    /// Notes when those that were just admitted began.
    fn begin_new(&mut self) {
        let now = self.clock.now();
        for i in 0..self.scheduler.parts().len() {
            let id = self.scheduler.parts()[i].id;
            if let Some(sequence) = self.scheduler.get_mut(id) {
                let reused = sequence.reused.unwrap_or(0);
                sequence.data.begin(reused, now);
            }
        }
    }

    /// Makes the soft rows of one run.
    fn run_tower(&mut self, id: u64, tower: usize, on_event: &mut OnEvent<'_>) {
        let now = self.clock.now();
        let Some(sequence) = self.scheduler.get_mut(id) else { return };
        let reused = sequence.reused.unwrap_or(0);
        sequence.data.begin(reused, now);
        let Some(run) = sequence.data.soft.get(tower).cloned() else { return };
        let stop = sequence.data.cancel.0.clone();
        let made = self.soft_rows.get(self.engine.as_mut(), &run.input, Some(&stop));
        let took = self.clock.now().saturating_sub(now);
        match made {
            Ok(rows) => {
                let Some(sequence) = self.scheduler.get_mut(id) else { return };
                sequence.data.soft_rows[tower] = Some(rows);
                sequence.towers[tower].ready = true;
                sequence.data.encode += took;
            }
            Err(e) if is_stopped(&e) => self.cancel(id, None, on_event),
            Err(e) => {
                let at = self.scheduler.get(id).map_or(0, |s| s.held.len());
                self.fail(id, at, e);
            }
        }
    }

    /// Copies the pages that sequences go on in.
    fn copy_pages(&mut self) {
        let mut copies = std::mem::take(&mut self.copies);
        self.scheduler.take_copies(&mut copies);
        for (id, copy) in &copies {
            let (engine, pair) = (self.engine.as_mut(), [(copy.from, copy.to)]);
            let done =
                guard(method::FORWARD, AssertUnwindSafe(|| engine.copy_pages(copy.group, &pair)));
            if let Err(e) = done {
                self.scheduler.pages.distrust_page(copy.group, copy.to);
                self.fail(*id, 0, e);
            }
        }
        self.copies = copies;
    }

    /// Starts the call that was planned.
    fn send(&mut self, on_event: &mut OnEvent<'_>) {
        self.guess();
        let mut parts = self.new_parts();
        self.batch.clear();
        let mut rows = 0;
        for i in 0..self.scheduler.parts().len() {
            let part = self.scheduler.parts()[i];
            let Some(sequence) = self.scheduler.get_mut(part.id) else { continue };
            if part.asks {
                sequence.data.ask_constraint();
            }
            pack(&mut self.batch, sequence, &part);
            let guesses = sequence.data.guesses.tokens.len();
            for guess in &sequence.data.guesses.tokens {
                self.batch.extend(*guess);
            }
            let n = part.scores.max(usize::from(part.asks)) as u32;
            let samples =
                part.asks && sequence.scores != Scores::Hidden && !sequence.data.is_full();
            let row = samples.then(|| rows + n - 1);
            parts.push(FlightPart { part, first: rows, row, guesses, stale: false });
            rows += n + guesses as u32;
        }
        if parts.is_empty() {
            return self.done_parts(parts);
        }
        if let Err((parts, e)) = self.submit_batch(parts, None) {
            self.end_parts(&parts, &e, on_event);
            self.done_parts(parts);
        }
    }

    /// Waits for a call and takes what it gave.
    fn land(&mut self, flight: Flight, on_event: &mut OnEvent<'_>) {
        let engine = self.engine.as_mut();
        let done = batch::wait(engine, flight.ticket, method::FORWARD, &mut self.results);
        let now = self.clock.now();
        let took = now.saturating_sub(flight.submitted.max(self.last_end));
        self.last_end = now;
        match done {
            Ok(()) => {
                self.scheduler.cost.note(flight.n_tokens, took);
                for part in flight.parts.iter().filter(|p| !p.stale) {
                    self.take(part, now, on_event);
                }
            }
            Err(e) => {
                self.release_ticket(flight.ticket);
                self.end_parts(&flight.parts, &e, on_event);
            }
        }
        self.release_tickets(&flight);
        self.done_parts(flight.parts);
    }

    /// Takes what a call gave for one sequence, unless that has ended.
    fn take(&mut self, flight_part: &FlightPart, now: Duration, on_event: &mut OnEvent<'_>) {
        let FlightPart { part, row, .. } = flight_part;
        if self.scheduler.get(part.id).is_none() {
            return;
        }
        if part.scores > 0
            && let Err(e) = self.take_scores(flight_part, on_event)
        {
            let e = match e {
                Error::NonFiniteLogits { .. } => self.locate_non_finite(part),
                e => e,
            };
            return self.fail(part.id, 0, e);
        }
        let Some(row) = row.map(|row| row as usize) else {
            self.scheduler.wrote(part.id, part.len);
            self.end_scored(part.id, on_event);
            return;
        };
        let mut accepted = 0;
        loop {
            let id = match self.sample(part, row + accepted) {
                Ok(id) => id,
                Err(e) => return self.fail_sample(part, e),
            };
            self.scheduler.wrote(part.id, if accepted == 0 { part.len } else { 1 });
            self.keep_hidden(part.id, row + accepted);
            let drawn = self.results.get(output::LOGITS).and_then(|out| out.drawn.get(row));
            if drawn.is_some_and(|drawn| *drawn != id) {
                self.mark_stale(part.id);
            }
            let goes_on = self.is_guessed(flight_part, accepted, id);
            if !goes_on {
                self.note_guesses(part.id, accepted);
            }
            self.push(part.id, id, now, on_event);
            if !goes_on {
                return;
            }
            accepted += 1;
            // What follows may depend on what was shown.
            let Some(sequence) = self.scheduler.get_mut(part.id) else { return };
            if sequence.data.cancel.is_cancelled() {
                return;
            }
            sequence.data.ask_constraint();
        }
    }

    /// Keeps the row that the newest token came from, if a drafter goes on from it.
    fn keep_hidden(&mut self, id: u64, row: usize) {
        let Some(sequence) = self.scheduler.get_mut(id) else { return };
        let hidden = &mut sequence.data.hidden;
        hidden.clear();
        if self.drafting.uses_model() {
            let rows = self.results.get(output::HIDDEN);
            hidden.extend_from_slice(rows.map_or(&[], |rows| rows.row(row)));
        }
    }

    /// Whether a token is the guess of this number, so that the call has its row, too.
    fn is_guessed(&self, part: &FlightPart, number: usize, id: u32) -> bool {
        let sequence = self.scheduler.get(part.part.id);
        let guess = sequence.and_then(|s| s.data.guesses.tokens.get(number));
        number < part.guesses && guess == Some(&id)
    }

    fn note_guesses(&mut self, id: u64, accepted: usize) {
        let Some(sequence) = self.scheduler.get_mut(id) else { return };
        match self.drafting.uses_model() {
            true => sequence.data.guesses.note_model(accepted),
            false => sequence.data.guesses.note(accepted),
        }
    }

    fn fail_sample(&mut self, part: &Part, error: Error) {
        // What is not finite may have been so for long.
        let (from, error) = match error {
            Error::NonFiniteLogits { .. } => (0, self.locate_non_finite(part)),
            error => (part.start, error),
        };
        self.fail(part.id, from, error);
    }

    /// Chooses the token after a part from its row of the results; its log-probabilities are left
    /// in `logprobs`.
    fn sample(&mut self, part: &Part, row: usize) -> Result<u32> {
        let gone = || Error::Program("a row of a sequence that is gone".into());
        let sequence = self.scheduler.get(part.id).ok_or_else(gone)?;
        let generation = &sequence.data;
        let out = batch::logits(&self.results)?;
        let position = sequence.tokens.len() as u32;
        let id = match generation.forced() {
            Some(id) => id,
            None => {
                let of = (generation, generation.mask());
                choose(&mut self.sampler, out, row, of, position)?
            }
        };
        if let Some(n) = generation.n_logprobs {
            logprobs::fill(&mut self.logprobs, out, row, generation.mask(), id, n);
        }
        Ok(id)
    }

    fn push(&mut self, sequence: u64, id: u32, now: Duration, on_event: &mut OnEvent<'_>) {
        let Some(found) = self.scheduler.get_mut(sequence) else { return };
        found.tokens.push(id);
        let generation = &mut found.data;
        let logprobs = generation.n_logprobs.map(|_| &self.logprobs);
        if let Some(mut finish) = generation.push(Sampled { id, logprobs, now }, on_event) {
            finish.stats.load_s = self.load_s;
            let name = generation.id;
            self.scheduler.remove(sequence, None);
            on_event(name, Event::Finished(&finish));
        }
    }

    /// Runs a part again to say where numbers stopped being finite. Writing the same keys again
    /// changes nothing.
    fn locate_non_finite(&mut self, part: &Part) -> Error {
        let Some(sequence) = self.scheduler.get(part.id) else {
            return Error::NonFiniteLogits { node: None };
        };
        self.batch.clear();
        pack(&mut self.batch, sequence, part);
        let held = std::iter::once(&sequence.held);
        let node = self.batch.first_non_finite(self.engine.as_mut(), held);
        Error::NonFiniteLogits { node }
    }

    /// Ends the sequences of a call that failed. One that was alone and told to stop was cancelled.
    fn end_parts(&mut self, parts: &[FlightPart], error: &Error, on_event: &mut OnEvent<'_>) {
        match parts {
            [FlightPart { part, .. }] if is_stopped(error) => {
                self.cancel(part.id, Some(part.start), on_event);
            }
            parts => self.fail_parts(parts, error),
        }
    }

    /// The call failed: nothing that it wrote can be trusted.
    fn fail_parts(&mut self, parts: &[FlightPart], error: &Error) {
        for FlightPart { part, .. } in parts {
            match self.scheduler.get(part.id) {
                Some(_) => self.fail(part.id, part.start, error.clone()),
                // Its pages may be anywhere by now.
                None => self.scheduler.pages.forget(),
            }
        }
    }
}

/// Adds the tokens of a part to a batch, and asks for the row after it if that is wanted.
fn pack(batch: &mut batch::Batch, sequence: &Sequence<Generation>, part: &Part) {
    let Part { start, len, .. } = *part;
    let token = batch.push(start, &sequence.tokens[start..start + len]);
    let rows = sequence.data.soft.iter().zip(&sequence.data.soft_rows);
    let rows = rows.filter_map(|(run, rows)| Some((run, rows.as_ref()?.as_slice())));
    sequence.blocks.apply(batch, (token, start, len), rows);
    match part.scores {
        0 if part.asks => _ = batch.ask_last(),
        scores => (len - scores..len).for_each(|i| _ = batch.ask(token + i)),
    }
}

/// The token that a row of logits gives, among those that the mask leaves.
pub(crate) fn choose(
    sampler: &mut crate::sampler::Sampler,
    out: &OutputResult,
    row: usize,
    (generation, mask): (&Generation, Mask<'_>),
    position: u32,
) -> Result<u32> {
    let Generation { params, history, .. } = generation;
    if out.per_row > 0 {
        return sampler.sample_largest(out.candidates_of(row), params, position);
    }
    sampler.sample_masked(out.row(row), mask, params, history, position)
}

fn is_stopped(error: &Error) -> bool {
    matches!(error, Error::Engine(e) if matches!(**e, lapidary_backend::Error::Stopped))
}
