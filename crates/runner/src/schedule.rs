//! One step for all generations.

use std::time::Instant;

use crate::batch;
use crate::error::Error;
use crate::generation::Generation;
use crate::request::{Event, FinishReason, GenerationId};
use crate::runner::Runner;

type OnEvent<'a> = dyn FnMut(GenerationId, Event<'_>) + 'a;

impl Runner {
    /// Does one call of the engine: the next token of every answer, and chunks of prompts in the
    /// order of their arrival as far as there is room. Returns whether generations are left.
    ///
    /// The tokens of a generation do not depend on what else is in the call, as far as the engine
    /// computes each row alike.
    pub fn step(&mut self, on_event: &mut OnEvent<'_>) -> bool {
        self.end_cancelled(on_event);
        self.admit();
        self.encode();
        self.pack();
        if self.batch.len() > 0 {
            let k = self.n_candidates();
            let ran = match k {
                Some(k) => self.batch.run_largest(self.engine.as_mut(), k, &mut self.largest),
                None => self.batch.run(self.engine.as_mut(), &mut self.outputs),
            };
            match ran {
                Ok(()) => self.take_results(k.is_some(), on_event),
                Err(e) => self.fail_packed(&e),
            }
        }
        for (generation, error) in self.failed.drain(..) {
            on_event(generation.id, Event::Failed(&error));
        }
        self.n_generations() > 0
    }

    fn end_cancelled(&mut self, on_event: &mut OnEvent<'_>) {
        let mut i = 0;
        while i < self.active.len() {
            if self.active[i].cancel.is_cancelled() {
                let generation = self.active.remove(i);
                self.end(generation, FinishReason::Cancelled, on_event);
            } else {
                i += 1;
            }
        }
        let mut i = 0;
        while i < self.waiting.len() {
            if self.waiting[i].cancel.is_cancelled()
                && let Some(generation) = self.waiting.remove(i)
            {
                self.end(generation, FinishReason::Cancelled, on_event);
            } else {
                i += 1;
            }
        }
    }

    fn end(&self, mut generation: Generation, reason: FinishReason, on_event: &mut OnEvent<'_>) {
        let mut finish = generation.finish(reason, on_event);
        finish.stats.load_s = self.load_s;
        on_event(generation.id, Event::Finished(&finish));
    }

    /// Gives free slots to those that wait, in the order of their arrival.
    fn admit(&mut self) {
        while let Some(next) = self.waiting.front() {
            let Some(slot) = self.best_slot(next) else { return };
            let Some(mut generation) = self.waiting.pop_front() else { return };
            self.clock += 1;
            let state = &mut self.slots[slot];
            let reused =
                state.start(&generation.tokens, &generation.soft, generation.scope, &self.rings);
            state.reserve(generation.max_len());
            state.used = self.clock;
            generation.admit(slot, reused);
            self.active.push(generation);
        }
    }

    /// The free slot that already holds most of the prompt, unless that would throw away the
    /// greater part of what it holds; else the one that was not used for longest.
    fn best_slot(&self, generation: &Generation) -> Option<usize> {
        let free = || {
            let active = &self.active;
            let slots = self.slots.iter().enumerate();
            slots.filter(move |(i, _)| !active.iter().any(|g| g.slot == *i))
        };
        let reusable = |i: usize| {
            let Generation { tokens, soft, scope, .. } = generation;
            self.slots[i].reusable(tokens, soft, *scope, &self.rings)
        };
        let (best, held) = free().map(|(i, s)| (i, s.len())).max_by_key(|(i, _)| reusable(*i))?;
        if reusable(best) * 2 > held {
            return Some(best);
        }
        free().min_by_key(|(_, s)| s.used).map(|(i, _)| i)
    }

    /// Makes the soft rows that the next call may need.
    fn encode(&mut self) {
        let mut i = 0;
        while i < self.active.len() {
            let generation = &mut self.active[i];
            let from = self.slots[generation.slot].len();
            let next = from..from + self.limit.chunk;
            let start = Instant::now();
            let mut made = false;
            let runs = generation.soft.iter().zip(&mut generation.soft_rows);
            let result = runs
                .filter(|(run, rows)| {
                    let range = run.range();
                    rows.is_none() && range.start < next.end && next.start < range.end
                })
                .try_for_each(|(run, rows)| {
                    made = true;
                    *rows = Some(self.soft_rows.get(self.engine.as_mut(), &run.input)?);
                    Ok(())
                });
            if made {
                generation.encode_s += start.elapsed().as_secs_f64();
            }
            match result {
                Ok(()) => i += 1,
                Err(e) => {
                    let generation = self.active.remove(i);
                    self.failed.push((generation, e));
                }
            }
        }
    }

    /// Fills the batch. Answers come first: they wait for one token only.
    fn pack(&mut self) {
        self.batch.clear();
        for answering in [true, false] {
            for generation in &mut self.active {
                let slot = &self.slots[generation.slot];
                let pending = &generation.tokens[slot.len()..];
                if (pending.len() == 1) != answering {
                    continue;
                }
                let room = self.limit.tokens - self.batch.len();
                let n = pending.len().min(self.limit.chunk).min(room);
                let n = generation.blocks.cut(slot.len(), n);
                generation.packed = n;
                generation.row = None;
                if n == 0 {
                    continue;
                }
                let first = self.batch.len();
                self.batch.push(generation.slot, slot.len(), &pending[..n]);
                let rows = generation.soft.iter().zip(&generation.soft_rows);
                let rows = rows.filter_map(|(run, rows)| Some((run, rows.as_ref()?.as_slice())));
                generation.blocks.apply(&mut self.batch, (first, slot.len(), n), rows);
                if n == pending.len() {
                    generation.row = Some(self.batch.ask_last());
                }
            }
        }
    }

    /// How many of the largest logits of a row are enough for all that this call asks for; `None`
    /// if whole rows are needed, or the engine gives nothing else.
    fn n_candidates(&self) -> Option<usize> {
        let most = self.engine.max_largest();
        let asking = self.active.iter().filter(|g| g.packed > 0 && g.row.is_some());
        let mut k = 0;
        for generation in asking {
            k = k.max(generation.params.n_candidates()?);
        }
        (1..=most).contains(&k).then_some(k)
    }

    /// Takes what a call gave: whole rows of logits, or the largest of each.
    fn take_results(&mut self, are_largest: bool, on_event: &mut OnEvent<'_>) {
        let (data, channels) = match self.batch.n_rows() {
            _ if are_largest => (&[][..], 1),
            0 => (&[][..], 1),
            _ => match batch::logits(&self.outputs) {
                Ok(logits) => logits,
                Err(e) => return self.fail_packed(&e),
            },
        };
        let mut i = 0;
        while i < self.active.len() {
            let generation = &mut self.active[i];
            let slot = &mut self.slots[generation.slot];
            let written = slot.len();
            slot.wrote(&generation.tokens[written..written + generation.packed]);
            let Some(row) = generation.row else {
                i += 1;
                continue;
            };
            let position = generation.tokens.len() as u32;
            let sampled = if are_largest {
                self.sampler.sample_largest(self.largest.row(row), &generation.params, position)
            } else {
                let logits = &data[row * channels..(row + 1) * channels];
                self.sampler.sample(logits, &generation.params, &generation.history, position)
            };
            match sampled.map(|id| generation.push(id, on_event)) {
                Ok(None) => i += 1,
                Ok(Some(mut finish)) => {
                    let generation = self.active.remove(i);
                    finish.stats.load_s = self.load_s;
                    on_event(generation.id, Event::Finished(&finish));
                }
                Err(e) => {
                    slot.forget();
                    let generation = self.active.remove(i);
                    self.failed.push((generation, e));
                }
            }
        }
        self.locate_non_finite();
    }

    /// Runs the call again to say where numbers stopped being finite. The call's inputs are still
    /// at hand, and writing the same keys again changes nothing.
    fn locate_non_finite(&mut self) {
        let here = |e: &Error| matches!(e, Error::NonFiniteLogits { .. });
        if self.failed.iter().any(|(_, e)| here(e)) {
            let node = self.batch.first_non_finite(self.engine.as_mut());
            for (_, error) in self.failed.iter_mut().filter(|(_, e)| here(e)) {
                *error = Error::NonFiniteLogits { node: node.clone() };
            }
        }
    }

    /// The call failed: nothing that its slots hold can be trusted.
    fn fail_packed(&mut self, error: &Error) {
        let mut i = 0;
        while i < self.active.len() {
            if self.active[i].packed == 0 {
                i += 1;
                continue;
            }
            let generation = self.active.remove(i);
            self.slots[generation.slot].forget();
            self.failed.push((generation, error.clone()));
        }
    }
}
