//! Guesses by the program's drafter.
//!
//! A drafter is a small model that reads its target's caches and writes none. Its query stands where
//! the last token of the answer stands, whose own key is not made yet, and stays there for the whole
//! burst; what moves is the token, and the row that it goes on from: first the target's, from which
//! the last token came, then the drafter's own. All sequences that guess do so in one call a step.
//!
//! A guess is drawn by the sequence's own rule, with the noise of the place that it is for: where the
//! drafter is as sure as its target, both draw the same token.

use lapidary_backend::{OutputResult, Results, TopK, Want, Wanted};
use lapidary_program::{method, output};

use crate::batch::{self, How};
use crate::error::Result;
use crate::generation::Generation;
use crate::runner::Runner;
use crate::scheduler::{Part, Scores, Sequence};
use crate::step::choose;

/// Memory that is kept from call to call.
#[derive(Debug, Default)]
pub(crate) struct Drafts {
    /// Sequences that guess, and how many tokens.
    wanted: Vec<(u64, usize)>,
    results: Results,
}

impl Runner {
    /// Lets the sequences of the call that was planned guess what follows their next tokens.
    pub(crate) fn guess(&mut self) {
        if self.drafting.is_off() {
            return;
        }
        let mut wanted = std::mem::take(&mut self.drafts.wanted);
        wanted.clear();
        let mut packed: usize = self.scheduler.parts().iter().map(|part| part.len).sum();
        let mut left = self.scheduler.parts().len();
        for i in 0..self.scheduler.parts().len() {
            let part = self.scheduler.parts()[i];
            let n = self.room_for_guesses(&part, packed, left);
            left -= 1;
            let Some(sequence) = self.scheduler.get_mut(part.id) else { continue };
            sequence.data.guesses.tokens.clear();
            if n == 0 {
                continue;
            }
            packed += self.guess_text(part.id, n);
            if self.drafting.uses_model() {
                wanted.push((part.id, n));
            }
        }
        if !wanted.is_empty() {
            self.run_drafts(&mut wanted);
        }
        self.drafts.wanted = wanted;
        self.check_guesses();
    }

    /// How many tokens a sequence may guess, in a call of so many others, where so many sequences
    /// are still to be asked.
    fn room_for_guesses(&self, part: &Part, packed: usize, left: usize) -> usize {
        let limits = &self.scheduler.limits;
        let most = limits.tokens.saturating_sub(packed).min(limits.chunk - 1);
        let Some(Sequence { data, scores, .. }) = self.scheduler.get(part.id) else { return 0 };
        let is_answer = part.asks && part.len == 1 && part.scores == 0 && *scores != Scores::Hidden;
        let is_ready = !self.drafting.uses_model() || !data.hidden.is_empty();
        if !is_answer || !is_ready || data.forced().is_some() {
            return 0;
        }
        // A drafter always has something to say; a text seldom does.
        let shared_by = if self.drafting.uses_model() { left } else { 1 };
        let room = data.guesses.room(packed, shared_by);
        // The last token that there is room for is no guess.
        room.min(most).min(data.n_left().saturating_sub(1))
    }

    /// Lets what knows the text guess; how many tokens that takes, or that a drafter will take.
    fn guess_text(&mut self, id: u64, n: usize) -> usize {
        let crate::Drafting::Text(drafter) = &self.drafting else { return n };
        let drafter = drafter.clone();
        let Some(sequence) = self.scheduler.get_mut(id) else { return 0 };
        let guesses = &mut sequence.data.guesses.tokens;
        drafter.guess(&sequence.tokens, n, guesses);
        guesses.truncate(n);
        guesses.len()
    }

    /// Runs the drafter, a token for each sequence a call, until each has as many as it wants.
    fn run_drafts(&mut self, wanted: &mut Vec<(u64, usize)>) {
        let longest = wanted.iter().map(|(_, n)| *n).max().unwrap_or(0);
        for step in 0..longest {
            wanted.retain(|(_, n)| *n > step);
            if self.draft_step(wanted).is_err() {
                // What can't be guessed is found the plain way; a fault of the device shows there.
                for (id, _) in &*wanted {
                    let sequence = self.scheduler.get_mut(*id);
                    sequence.into_iter().for_each(|s| s.data.guesses.give_up());
                }
                break;
            }
        }
        if let crate::Drafting::ModelSaying(drafter) = &self.drafting {
            let drafter = drafter.clone();
            for part in self.scheduler.parts().to_vec() {
                let Some(sequence) = self.scheduler.get_mut(part.id) else { continue };
                let guesses = &mut sequence.data.guesses.tokens;
                let n = guesses.len();
                guesses.clear();
                drafter.guess(&sequence.tokens, n, guesses);
                guesses.truncate(n);
            }
        }
    }

    /// One token of each of these sequences, and the rows that the next step goes on from.
    fn draft_step(&mut self, sequences: &[(u64, usize)]) -> Result<()> {
        self.batch.clear();
        let scheduler = &self.scheduler;
        let found = || sequences.iter().filter_map(|(id, _)| scheduler.get(*id));
        let mut k = 0;
        for sequence in found() {
            let Generation { guesses, hidden, .. } = &sequence.data;
            let Some((at, last)) = sequence.tokens.iter().enumerate().next_back() else { continue };
            let token = guesses.tokens.last().unwrap_or(last);
            let from = if guesses.tokens.is_empty() { hidden } else { &guesses.hidden };
            self.batch.push_draft(at, *token, from);
            k = k.max(sequence.data.n_candidates().unwrap_or(usize::MAX));
        }
        let abilities = self.engine.abilities();
        let want = match abilities.prefers_top_k && (1..=abilities.max_top_k).contains(&k) {
            true => Want::TopK(TopK::of(k)),
            false => Want::Whole,
        };
        let wants = [Wanted { output: output::LOGITS, want }, Wanted::whole(output::HIDDEN)];
        let how = How { method: method::DRAFT, wants: &wants, ..How::default() };
        let held = found().map(|s| &s.held);
        let ticket = self.batch.submit(self.engine.as_mut(), held, how)?;
        let mut results = std::mem::take(&mut self.drafts.results);
        let done = batch::wait(self.engine.as_mut(), ticket, method::DRAFT, &mut results);
        let done = done.and_then(|()| self.take_drafts(sequences, &results));
        self.drafts.results = results;
        done
    }

    fn take_drafts(&mut self, sequences: &[(u64, usize)], results: &Results) -> Result<()> {
        let logits = batch::logits(results)?;
        let hidden = results.get(output::HIDDEN);
        for (row, (id, _)) in sequences.iter().enumerate() {
            let Some(sequence) = self.scheduler.get_mut(*id) else { continue };
            let position = sequence.tokens.len() + sequence.data.guesses.tokens.len();
            let data = &sequence.data;
            let token = choose(&mut self.sampler, logits, row, (data, None), position as u32)?;
            let guesses = &mut sequence.data.guesses;
            guesses.tokens.push(token);
            guesses.hidden.clear();
            guesses
                .hidden
                .extend_from_slice(hidden.map_or(&[], |rows: &OutputResult| rows.row(row)));
        }
        Ok(())
    }

    /// Leaves out what is no token, and what there are no pages for.
    fn check_guesses(&mut self) {
        let vocab_size = self.program.metadata().vocab_size;
        for i in 0..self.scheduler.parts().len() {
            let part = self.scheduler.parts()[i];
            let Some(sequence) = self.scheduler.get_mut(part.id) else { continue };
            let Sequence { tokens, data, .. } = sequence;
            // What stands for something soft is no token.
            let is_token = |id: &&u32| {
                **id < vocab_size && data.soft.iter().all(|run| tokens[run.range().start] != **id)
            };
            let n = data.guesses.tokens.iter().take_while(is_token).count();
            data.guesses.tokens.truncate(n);
            if n > 0 && !self.scheduler.reserve(part.id, part.start + part.len + n) {
                let sequence = self.scheduler.get_mut(part.id);
                sequence.into_iter().for_each(|s| s.data.guesses.tokens.clear());
            }
        }
    }
}
