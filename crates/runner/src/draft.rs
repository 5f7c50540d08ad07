//! Guesses of the next tokens, which one call checks together.
//!
//! Few tokens cost a call little more than one does, because it is bound by reading weights. So a
//! sequence brings guesses along, and the call gives a row of logits after each. The token is chosen
//! from the first row as always; if it is the first guess, the second row is the one that the next
//! call would have given, and so on. Noise is keyed by seed, position and id, so an answer is the same
//! with guesses and without. A key that was written for a wrong guess is written again by the next
//! call; nobody sees it before that.

use std::fmt;
use std::sync::Arc;

/// The most guesses of one sequence in a call.
const MOST: usize = 8;
/// The most tokens of a call that brings guesses: with more, a call is no longer bound by weights.
const MOST_TOKENS: usize = 16;
/// Calls whose guesses were all wrong, after which a sequence rests from guessing.
const PATIENCE: u32 = 3;
/// What an earlier call counts of what the next one does, to a drafter.
const MEMORY: f32 = 0.9;
/// How often a drafter's guess has to be right to be worth its cost.
const WORTH: f32 = 0.2;
/// The longest rest, as a power of two of tokens.
const LONGEST_REST: u32 = 6;

/// What guesses the next tokens of answers.
#[derive(Clone, Debug, Default)]
pub enum Drafting {
    /// Nothing: a call gives one token.
    #[default]
    Off,
    /// Something that knows the text alone.
    Text(Arc<dyn Drafter>),
    /// The program's drafter: its method `draft`, over the caches of the answer itself.
    Model,
    /// The same, but what it says is replaced: for measuring what drafts cost and gain if so many of
    /// them are right.
    ModelSaying(Arc<dyn Drafter>),
}

impl Drafting {
    /// Whether nothing guesses.
    pub(crate) fn is_off(&self) -> bool {
        matches!(self, Drafting::Off)
    }

    /// Whether the program's drafter guesses, which goes on from the rows that logits are made of.
    pub(crate) fn uses_model(&self) -> bool {
        matches!(self, Drafting::Model | Drafting::ModelSaying(_))
    }
}

/// Guesses how texts go on. Wrong guesses cost time, never change an answer.
pub trait Drafter: fmt::Debug + Send + Sync {
    /// Appends at most `n` tokens that may follow `tokens`.
    fn guess(&self, tokens: &[u32], n: usize, into: &mut Vec<u32>);
}

/// Guesses that a text goes on as it did the last time that its last tokens stood in it: names, code
/// and quotations come again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookup;

impl Lookup {
    /// Tokens that have to come again, longest first.
    const LENGTHS: [usize; 2] = [4, 2];
    /// How far back is looked.
    const REACH: usize = 16_384;
}

impl Drafter for Lookup {
    fn guess(&self, tokens: &[u32], n: usize, into: &mut Vec<u32>) {
        for length in Self::LENGTHS {
            let Some(end) = tokens.len().checked_sub(length) else { continue };
            let (before, last) = tokens.split_at(end);
            let from = before.len().saturating_sub(Self::REACH);
            // What is found may reach into the last tokens, as a row of equal ones does.
            let seen = &tokens[from..tokens.len() - 1];
            if let Some(at) = seen.windows(length).rposition(|window| window == last) {
                let after = &tokens[from + at + length..];
                return into.extend(after.iter().take(n));
            }
        }
    }
}

/// What one sequence guesses, and how much it dares.
#[derive(Debug)]
pub(crate) struct Guesses {
    /// Those of the call under way.
    pub(crate) tokens: Vec<u32>,
    /// The row that a drafter goes on from after the last of them.
    pub(crate) hidden: Vec<f32>,
    /// How many the next call brings at most.
    most: usize,
    /// Calls in a row whose guesses were all wrong.
    misses: u32,
    /// Tokens until it guesses again.
    rest: usize,
    /// Guesses of late that were right, and those that could be; older ones count less.
    right: f32,
    tried: f32,
    pub(crate) tally: Tally,
}

/// What came of guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) calls: usize,
    pub(crate) drafted: usize,
    pub(crate) accepted: usize,
}

impl Default for Guesses {
    fn default() -> Self {
        let tally = Tally::default();
        Guesses {
            tokens: Vec::new(),
            hidden: Vec::new(),
            most: MOST / 2,
            misses: 0,
            rest: 0,
            right: 0.0,
            tried: 0.0,
            tally,
        }
    }
}

impl Guesses {
    /// How many tokens the next call may bring, beside `packed` others, if so many sequences share
    /// what room there is.
    pub(crate) fn room(&self, packed: usize, shared_by: usize) -> usize {
        let room = MOST_TOKENS.saturating_sub(packed) / shared_by.max(1);
        if self.rest > 0 { 0 } else { room.min(self.most) }
    }

    /// Whether it does not guess for now.
    pub(crate) fn is_resting(&self) -> bool {
        self.rest > 0
    }

    /// Notes that a token was found.
    pub(crate) fn note_token(&mut self) {
        self.rest = self.rest.saturating_sub(1);
    }

    /// Guesses nothing more for as long as can be.
    pub(crate) fn give_up(&mut self) {
        self.tokens.clear();
        self.rest = usize::MAX;
    }

    /// Notes how many of the first guesses of a drafter were right.
    ///
    /// One more guess costs a step of the drafter and a row of the call. It is worth that if all
    /// guesses up to it are right often enough.
    pub(crate) fn note_model(&mut self, accepted: usize) {
        let drafted = self.tokens.len();
        if drafted == 0 {
            return;
        }
        self.count(accepted);
        // What comes after a wrong guess was not tried.
        let tried = drafted.min(accepted + 1);
        self.right = self.right * MEMORY + accepted as f32;
        self.tried = self.tried * MEMORY + tried as f32;
        let rate = self.right / self.tried;
        let worth = match rate {
            rate if rate >= 1.0 => MOST as f32,
            rate => (WORTH.ln() / rate.max(1e-3).ln()).floor(),
        };
        self.most = (worth as usize).clamp(1, MOST);
        self.misses = if worth < 1.0 { self.misses + 1 } else { 0 };
        if self.misses >= PATIENCE {
            self.rest = 1 << self.misses.min(LONGEST_REST);
        }
        self.tokens.clear();
    }

    fn count(&mut self, accepted: usize) {
        self.tally.calls += 1;
        self.tally.drafted += self.tokens.len();
        self.tally.accepted += accepted;
    }

    /// Notes how many of the first guesses were right.
    pub(crate) fn note(&mut self, accepted: usize) {
        let drafted = self.tokens.len();
        if drafted == 0 {
            return;
        }
        self.count(accepted);
        if accepted == 0 {
            self.misses += 1;
            self.most = 1.max(self.most / 2);
            if self.misses >= PATIENCE {
                self.rest = 1 << self.misses.min(LONGEST_REST);
            }
        } else {
            self.misses = 0;
            // One more than what was right, so that the number can grow.
            self.most =
                if accepted == drafted { (2 * drafted).clamp(1, MOST) } else { accepted + 1 };
        }
        self.tokens.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[u32], n: usize) -> Vec<u32> {
        let mut into = vec![];
        Lookup.guess(tokens, n, &mut into);
        into
    }

    #[test]
    fn what_stood_there_the_last_time_is_guessed() {
        assert_eq!(guess(&[1, 2, 3, 9, 1, 2], 3), [3, 9, 1]);
        assert_eq!(guess(&[1, 2, 3, 1, 2, 4, 5, 1, 2], 2), [4, 5]);
        // Four tokens that come again are better than two.
        assert_eq!(guess(&[1, 2, 3, 4, 7, 3, 4, 8, 1, 2, 3, 4], 1), [7]);
        assert!(guess(&[1, 2, 3, 4], 4).is_empty());
        assert_eq!(guess(&[5, 5, 5], 4), [5]);
        assert!(guess(&[5], 4).is_empty());
        assert!(guess(&[], 4).is_empty());
    }

    #[test]
    fn the_number_of_guesses_follows_what_is_right() {
        let mut guesses = Guesses::default();
        let mut call = |n: usize, accepted: usize| {
            guesses.tokens = vec![0; n];
            guesses.note(accepted);
            (guesses.room(1, 1), guesses.is_resting())
        };
        assert_eq!(call(4, 4), (8, false));
        assert_eq!(call(8, 2), (3, false));
        assert_eq!(call(3, 0), (1, false));
        assert_eq!(call(1, 0), (1, false));
        assert_eq!(call(1, 0), (0, true));
        (0..8).for_each(|_| guesses.note_token());
        assert_eq!((guesses.room(1, 1), guesses.room(16, 1)), (1, 0));
        let tally = Tally { calls: 5, drafted: 17, accepted: 6 };
        assert_eq!(guesses.tally, tally);
    }

    #[test]
    fn a_drafter_guesses_as_many_as_are_often_right() {
        let mut guesses = Guesses::default();
        let mut calls = |accepted: &[usize]| {
            for accepted in accepted {
                guesses.tokens = vec![0; guesses.most];
                guesses.note_model((*accepted).min(guesses.tokens.len()));
            }
            (guesses.room(1, 1), guesses.is_resting())
        };
        assert_eq!(calls(&[8; 4]), (8, false));
        // Every other one is right: two in a row are in one call of four, three in one of eight.
        assert_eq!(calls(&[1; 60]), (2, false));
        assert_eq!(calls(&[0; 40]), (0, true));
    }
}
