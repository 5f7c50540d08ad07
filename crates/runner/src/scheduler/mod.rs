//! What the next step does: whose tokens go into the next call.
//!
//! Answers go first, one token each. Prompts share what is left in turns, so that a long one does
//! not keep a short one waiting; while there are answers, a step is no longer than the time between
//! two of their tokens may be. Towers are steps of their own, and so are texts that are embedded,
//! whose calls make no logits; they take turns with the rest. When pages run out, the newest
//! sequence goes back to the queue and is computed again later; the oldest always goes on, so all
//! come to an end.

mod cost;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::pages::{Held, PageCopy, Pages, SoftKey, Text};
use crate::soft::Blocks;

pub(crate) use cost::Cost;

/// Tokens that a prompt waits for rather than run them itself.
const WORTH_WAITING: usize = 32;

/// What steps are held to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Tokens of one sequence in one call.
    pub(crate) chunk: usize,
    /// Tokens of one call.
    pub(crate) tokens: usize,
    /// Sequences that run at once.
    pub(crate) n_sequences: usize,
    /// Sequences that may wait.
    pub(crate) queue: usize,
    /// The time between two tokens of an answer, as far as prompts are to blame.
    pub(crate) between_tokens: Duration,
    /// Rows of logits of prompts in one call.
    pub(crate) score_rows: usize,
}

/// Which rows of a prompt are wanted, besides the one after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scores {
    /// None.
    #[default]
    None,
    /// The logits after every token.
    Logits,
    /// The rows that logits would be made of, and nothing after the prompt.
    Hidden,
}

/// One text in the making, and what its owner keeps with it.
#[derive(Debug)]
pub(crate) struct Sequence<T> {
    /// Later ones have greater numbers.
    pub(crate) id: u64,
    /// Prompt and answer so far.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    pub(crate) soft: Vec<SoftKey>,
    pub(crate) blocks: Blocks,
    pub(crate) scope: u64,
    /// Soft tokens that a tower makes, and whether it has.
    pub(crate) towers: Vec<Tower>,
    pub(crate) data: T,
    pub(crate) held: Held,
    /// Tokens of the prompt that were at hand when it was first admitted.
    pub(crate) reused: Option<usize>,
    pub(crate) scores: Scores,
    /// Tokens of the prompt whose rows were taken.
    pub(crate) scored: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Tower {
    pub(crate) range: Range<usize>,
    pub(crate) ready: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// There is nothing to do.
    Nothing,
    /// A tower of a sequence is to be run.
    Tower { id: u64, tower: usize },
    /// The tokens of [`Scheduler::parts`] are to be run.
    Forward,
}

/// Tokens of one sequence in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: u64,
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Whether the token after them is wanted.
    pub(crate) asks: bool,
    /// Of how many of the last of them rows are wanted for their own sake.
    pub(crate) scores: usize,
}

/// Sequences, those that run and those that wait.
#[derive(Debug)]
pub(crate) struct Scheduler<T> {
    pub(crate) pages: Pages,
    pub(crate) limits: Limits,
    pub(crate) cost: Cost,
    running: Vec<Sequence<T>>,
    /// In the order of their arrival.
    waiting: VecDeque<Sequence<T>>,
    parts: Vec<Part>,
    /// Pages to be copied before the next call, and for whom.
    copies: Vec<(u64, PageCopy)>,
    /// The prompt that was first served last.
    turn: u64,
    last_was_tower: bool,
    last_was_hidden: bool,
    n_preempted: usize,
    /// Scratch.
    ids: Vec<u64>,
    new_copies: Vec<PageCopy>,
}

impl<T> Sequence<T> {
    pub(crate) fn text(&self) -> Text<'_> {
        Text { tokens: &self.tokens, soft: &self.soft, scope: self.scope }
    }

    /// Tokens that were not run yet.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.held.len()
    }

    /// How many of them may go into one call, at most so many.
    fn packable(&self, most: usize) -> usize {
        let from = self.held.len();
        let mut n = self.pending().min(most);
        for tower in self.towers.iter().filter(|t| !t.ready && t.range.end > from) {
            n = n.min(tower.range.start.saturating_sub(from));
        }
        self.blocks.cut(from, n)
    }

    /// Whether rows of its prompt are still wanted.
    fn is_scored(&self) -> bool {
        self.scores != Scores::None && self.scored < self.prompt_len
    }

    /// How many tokens that are at hand it may start after: rows that are wanted must be run.
    fn most_reused(&self) -> usize {
        match self.scores {
            Scores::Hidden => 0,
            Scores::Logits if self.is_scored() => self.scored,
            Scores::Logits | Scores::None => usize::MAX,
        }
    }

    /// Of how many of the last of these tokens rows are wanted for their own sake.
    fn score_rows(&self, start: usize, len: usize) -> usize {
        if self.is_scored() { (start + len).saturating_sub(self.scored).min(len) } else { 0 }
    }

    /// A tower that the next chunk waits for.
    fn next_tower(&self, chunk: usize) -> Option<usize> {
        let (from, to) = (self.held.len(), self.held.len() + chunk);
        self.towers.iter().position(|t| !t.ready && t.range.start < to && from < t.range.end)
    }
}

impl<T> Scheduler<T> {
    pub(crate) fn new(pages: Pages, limits: Limits) -> Self {
        Scheduler {
            pages,
            limits,
            cost: Cost::default(),
            running: Vec::with_capacity(limits.n_sequences),
            waiting: VecDeque::new(),
            parts: Vec::new(),
            copies: Vec::new(),
            turn: 0,
            last_was_tower: false,
            last_was_hidden: false,
            n_preempted: 0,
            ids: Vec::new(),
            new_copies: Vec::new(),
        }
    }

    /// Sequences that run or wait.
    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Sequences that wait.
    pub(crate) fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often a sequence was put back to the queue.
    pub(crate) fn n_preempted(&self) -> usize {
        self.n_preempted
    }

    /// Adds a sequence to those that wait; gives it back if too many do.
    pub(crate) fn submit(&mut self, sequence: Sequence<T>) -> Result<(), Box<Sequence<T>>> {
        // What can run at once need not wait.
        let free = self.limits.n_sequences.saturating_sub(self.running.len());
        if self.waiting.len() >= self.limits.queue.saturating_add(free) {
            return Err(Box::new(sequence));
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// All sequences.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence<T>> {
        self.running.iter().chain(&self.waiting)
    }

    /// Those that run.
    pub(crate) fn running(&self) -> &[Sequence<T>] {
        &self.running
    }

    /// A sequence that runs.
    pub(crate) fn get(&self, id: u64) -> Option<&Sequence<T>> {
        self.running.iter().find(|s| s.id == id)
    }

    /// A sequence that runs.
    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Sequence<T>> {
        self.running.iter_mut().find(|s| s.id == id)
    }

    /// What the last plan put into the call.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Pages to be copied before the next call, and for whom, in order.
    pub(crate) fn take_copies(&mut self, into: &mut Vec<(u64, PageCopy)>) {
        into.clear();
        into.append(&mut self.copies);
    }

    /// Notes that tokens of a sequence were written.
    pub(crate) fn wrote(&mut self, id: u64, n: usize) {
        let Scheduler { running, pages, .. } = self;
        let Some(sequence) = running.iter_mut().find(|s| s.id == id) else { return };
        let Sequence { held, tokens, soft, scope, .. } = sequence;
        pages.wrote(held, &Text { tokens, soft, scope: *scope }, n);
    }

    /// Makes sure that a sequence that runs has pages for all positions before `end`, without
    /// taking them from others; whether it has.
    pub(crate) fn reserve(&mut self, id: u64, end: usize) -> bool {
        let Scheduler { running, pages, .. } = self;
        let sequence = running.iter_mut().find(|s| s.id == id);
        sequence.is_some_and(|s| pages.reserve(&mut s.held, end))
    }

    /// Makes sure that nobody finds what a sequence writes from a position on.
    pub(crate) fn distrust(&mut self, id: u64, from: usize) {
        if let Some(sequence) = self.running.iter().find(|s| s.id == id) {
            self.pages.distrust(&sequence.held, from);
        }
    }

    /// Whether a sequence that waits might run.
    pub(crate) fn may_admit(&self) -> bool {
        !self.waiting.is_empty() && self.running.len() < self.limits.n_sequences
    }

    /// Ends a sequence. What it wrote stays findable, from `distrust` on excepted.
    pub(crate) fn remove(&mut self, id: u64, distrust: Option<usize>) -> Option<Sequence<T>> {
        self.parts.retain(|part| part.id != id);
        let mut sequence = match self.running.iter().position(|s| s.id == id) {
            Some(i) => self.running.remove(i),
            None => {
                let i = self.waiting.iter().position(|s| s.id == id)?;
                self.waiting.remove(i)?
            }
        };
        if let Some(from) = distrust {
            self.pages.distrust(&sequence.held, from);
        }
        self.pages.release(&mut sequence.held);
        Some(sequence)
    }

    /// Decides what to do next. No call may be under way.
    pub(crate) fn plan(&mut self) -> Work {
        self.parts.clear();
        self.admit();
        let tower = self.running.iter().find_map(|s| {
            let tower = s.next_tower(self.limits.chunk)?;
            Some(Work::Tower { id: s.id, tower })
        });
        // Towers take turns with the rest, so that answers go on between two of them.
        if tower.is_none() || self.last_was_tower {
            self.last_was_tower = false;
            self.pack();
            if !self.parts.is_empty() {
                return Work::Forward;
            }
        }
        self.last_was_tower = tower.is_some();
        tower.unwrap_or(Work::Nothing)
    }

    /// Lets sequences run, in the order of their arrival, as far as there are pages for them.
    fn admit(&mut self) {
        let mut i = 0;
        while i < self.waiting.len() && self.running.len() < self.limits.n_sequences {
            let text = self.waiting[i].text();
            let most = self.waiting[i].most_reused();
            let prospect = self.pages.prospect(&text, self.limits.chunk, (most, 1));
            let alone = self.running.is_empty();
            if !alone && !prospect.fits {
                return;
            }
            let waits = !self.waiting[i].is_scored();
            if !alone && waits && self.is_being_written(&text, prospect.reused) {
                i += 1;
                continue;
            }
            let Some(mut sequence) = self.waiting.remove(i) else { return };
            self.new_copies.clear();
            sequence.held = match sequence.scores {
                // Nobody asks for what follows.
                Scores::Hidden => self.pages.start_alone(),
                Scores::None | Scores::Logits => {
                    let bounds = (most, sequence.prompt_len);
                    self.pages.start(&sequence.text(), bounds, &mut self.new_copies)
                }
            };
            sequence.reused.get_or_insert(sequence.held.len());
            self.copies.extend(self.new_copies.drain(..).map(|copy| (sequence.id, copy)));
            self.running.push(sequence);
        }
    }

    /// Whether another sequence is about to write more of this text than is at hand: it is better to
    /// wait for that than to do it twice.
    fn is_being_written(&self, text: &Text<'_>, reused: usize) -> bool {
        let most = text.tokens.len().saturating_sub(1);
        self.running.iter().filter(|s| s.scope == text.scope && s.pending() > 1).any(|s| {
            let both = s.tokens.iter().zip(text.tokens);
            let common = both.take_while(|(a, b)| a == b).count().min(most);
            let soft = s.soft.iter().chain(text.soft).filter(|key| key.start < common);
            let differs = soft.filter(|key| !(s.soft.contains(key) && text.soft.contains(key)));
            let common = differs.map(|key| key.start).min().unwrap_or(common);
            let common = text.whole(common);
            common >= reused + WORTH_WAITING && s.held.len() < common
        })
    }

    /// Fills the call, with texts that are embedded or with all others: their turns alternate.
    fn pack(&mut self) {
        let is_hidden = |s: &Sequence<T>| s.scores == Scores::Hidden;
        let hidden = self.running.iter().any(is_hidden)
            && (!self.last_was_hidden || self.running.iter().all(is_hidden));
        self.pack_some(hidden);
        if self.parts.is_empty() && self.running.iter().any(|s| is_hidden(s) != hidden) {
            self.pack_some(!hidden);
        }
    }

    fn pack_some(&mut self, hidden: bool) {
        self.last_was_hidden = hidden;
        let of_turn = |s: &&Sequence<T>| (s.scores == Scores::Hidden) == hidden;
        let mut ids = std::mem::take(&mut self.ids);
        ids.clear();
        let running = self.running.iter().filter(of_turn);
        ids.extend(running.filter(|s| s.pending() == 1).map(|s| s.id));
        ids.sort_unstable();
        for id in &ids {
            self.pack_answer(*id);
        }
        let answers = self.parts.len();
        // Those whose turn comes next wait for this call, too.
        let wait = hidden && self.running.iter().any(|s| !of_turn(&s) && s.pending() == 1);
        let budget = match answers {
            0 if !wait => self.limits.tokens,
            _ => {
                let within = self.cost.tokens_within(self.limits.between_tokens, answers.max(1));
                within.clamp(answers + 1, self.limits.tokens.max(answers + 1))
            }
        };
        ids.clear();
        let running = self.running.iter().filter(of_turn);
        ids.extend(running.filter(|s| s.pending() > 1).map(|s| s.id));
        let turn = self.turn;
        ids.sort_unstable_by_key(|id| (*id <= turn, *id));
        let mut first = true;
        for id in &ids {
            if self.pack_prompt(*id, budget, first) && first {
                self.turn = *id;
                first = false;
            }
        }
        self.ids = ids;
    }

    fn packed(&self) -> usize {
        self.parts.iter().map(|part| part.len).sum()
    }

    fn pack_answer(&mut self, id: u64) {
        loop {
            let Some(i) = self.running.iter().position(|s| s.id == id) else { return };
            let Scheduler { running, pages, .. } = self;
            let sequence = &mut running[i];
            if sequence.packable(1) == 0 {
                return;
            }
            let end = sequence.held.len() + 1;
            if pages.reserve(&mut sequence.held, end) {
                let start = end - 1;
                let scores = sequence.score_rows(start, 1);
                self.parts.push(Part { id, start, len: 1, asks: true, scores });
                return;
            }
            // The newest gives way, be it this one.
            self.preempt_after(id).or_else(|| self.preempt(id));
        }
    }

    /// Packs a chunk of a prompt; whether anything of it was.
    fn pack_prompt(&mut self, id: u64, budget: usize, first: bool) -> bool {
        let oldest = self.running.iter().map(|s| s.id).min() == Some(id);
        loop {
            let packed = self.packed();
            let score_rows: usize = self.parts.iter().map(|part| part.scores).sum();
            let Some(i) = self.running.iter().position(|s| s.id == id) else { return false };
            let Scheduler { running, pages, limits, .. } = self;
            let sequence = &mut running[i];
            let from = sequence.held.len();
            let rows = match sequence.scores {
                Scores::Logits if sequence.is_scored() => {
                    let left = limits.score_rows.saturating_sub(score_rows);
                    left + sequence.scored.saturating_sub(from)
                }
                _ => usize::MAX,
            };
            let room = |budget: usize| budget.saturating_sub(packed).min(limits.chunk).min(rows);
            let mut n = sequence.packable(room(budget));
            if n == 0 && first {
                // A block that is longer than a step should be goes whole when its turn has come.
                let room = limits.tokens.saturating_sub(packed).min(limits.chunk);
                n = sequence.packable(room).min(sequence.first_block());
            }
            if n == 0 {
                return false;
            }
            let reach = pages.reach(&sequence.held).saturating_sub(from);
            n = sequence.blocks.cut(from, n.min(reach));
            if n > 0 && pages.reserve(&mut sequence.held, from + n) {
                let asks = n == sequence.pending();
                let scores = sequence.score_rows(from, n);
                self.parts.push(Part { id, start: from, len: n, asks, scores });
                return true;
            }
            // Only the oldest takes pages from others; the rest wait until some are given back.
            if !oldest || self.preempt_after(id).is_none() {
                return false;
            }
        }
    }

    /// Puts the newest sequence back to the queue, if it is newer than this.
    fn preempt_after(&mut self, id: u64) -> Option<()> {
        let newest = self.running.iter().map(|s| s.id).max()?;
        if newest > id { self.preempt(newest) } else { None }
    }

    /// Puts a sequence back to the queue. Its tokens are run again later.
    fn preempt(&mut self, id: u64) -> Option<()> {
        let i = self.running.iter().position(|s| s.id == id)?;
        let mut sequence = self.running.remove(i);
        self.parts.retain(|part| part.id != id);
        self.pages.release(&mut sequence.held);
        let at = self.waiting.iter().position(|s| s.id > id).unwrap_or(self.waiting.len());
        self.waiting.insert(at, sequence);
        self.n_preempted += 1;
        Some(())
    }
}

impl<T> Sequence<T> {
    /// Tokens up to the end of the block that comes next.
    fn first_block(&self) -> usize {
        let from = self.held.len();
        self.blocks.next_end(from).map_or(usize::MAX, |end| end - from)
    }
}
