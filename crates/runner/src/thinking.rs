//! How long a model thinks before it has to answer.

use crate::request::ThinkingLimit;

/// The most tokens that are kept for the answer.
const ROOM: usize = 2048;

/// Counts the tokens of thoughts and ends the one that is too long.
#[derive(Debug)]
pub(crate) struct ThinkingClock {
    left: usize,
    close: Vec<u32>,
    /// How many tokens of the close are still to come.
    forced: usize,
}

impl ThinkingClock {
    /// For an answer of at most `budget` tokens, a quarter of which is not for thinking; or half, if the
    /// answer is held to a grammar and so can't be cut.
    pub(crate) fn new(limit: ThinkingLimit, budget: usize, is_held: bool) -> Self {
        let part = if is_held { budget / 2 } else { budget / 4 };
        let room = part.min(ROOM).max(limit.close.len() + 1);
        let left = limit.tokens.min(budget.saturating_sub(room));
        ThinkingClock { left, close: limit.close, forced: 0 }
    }

    /// The token that has to come next.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.close.get(self.close.len() - self.forced).copied()
    }

    /// Takes a token; `thinking` if a thought goes on after it.
    pub(crate) fn push(&mut self, thinking: bool) {
        if self.forced > 0 {
            self.forced -= 1;
            return;
        }
        if thinking {
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                self.forced = self.close.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many tokens of an endless thought come before its end is forced.
    fn tokens(limit: usize, budget: usize) -> usize {
        tokens_held(limit, budget, false)
    }

    fn tokens_held(limit: usize, budget: usize, is_held: bool) -> usize {
        let mut clock =
            ThinkingClock::new(ThinkingLimit { tokens: limit, close: vec![8, 9] }, budget, is_held);
        let mut n = 0;
        while clock.forced().is_none() {
            clock.push(true);
            n += 1;
        }
        assert_eq!(clock.forced(), Some(8));
        clock.push(true);
        assert_eq!(clock.forced(), Some(9));
        clock.push(false);
        assert_eq!(clock.forced(), None);
        // A second thought is closed at once.
        clock.push(true);
        assert_eq!(clock.forced(), Some(8));
        n
    }

    #[test]
    fn room_is_left_for_the_answer() {
        assert_eq!(tokens(10, 1000), 10);
        assert_eq!(tokens(0, 1000), 1);
        assert_eq!(tokens(usize::MAX, 1000), 750);
        assert_eq!(tokens(999, 1000), 750);
        assert_eq!(tokens(usize::MAX, 100_000), 100_000 - ROOM);
        assert_eq!(tokens(usize::MAX, 8), 5);
        assert_eq!(tokens(usize::MAX, 1), 1);
        assert_eq!(tokens_held(usize::MAX, 1000, true), 500);
        assert_eq!(tokens_held(usize::MAX, 100_000, true), 100_000 - ROOM);
    }
}
