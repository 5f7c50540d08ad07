//! What the caches hold, and when a conversation may continue from them.
//!
//! Caches are addressed by slot and position, so rewinding is only bookkeeping: feed a lower
//! position again. A ring cache forgets, though. This file keeps the one rule that follows.

use lapidary_backend::LoadOptions;
use lapidary_program::Program;

use crate::media::SoftRun;

/// A cache that forgets: readers see `window` keys, `capacity` positions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Keys that a query sees, itself included.
    pub(crate) window: usize,
    /// Positions that are kept.
    pub(crate) capacity: usize,
}

/// The tokens whose keys and values one slot's caches hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot {
    tokens: Vec<u32>,
    /// What stands at soft positions: first position, number, hash. Ids say nothing there.
    soft: Vec<(usize, usize, [u8; 32])>,
    /// One past the highest position written since position 0 was last written. Rewinding does
    /// not lower it: what a ring has overwritten stays lost.
    high: usize,
    /// Only requests of the same scope may continue from here.
    scope: u64,
    /// When it was last used, in the runner's own time.
    pub(crate) used: u64,
}

/// Whether the next token may stand at position `to`, when positions up to `high` were written.
///
/// A ring holds positions `high − capacity … high − 1`. The query at `to` needs the keys at
/// `to − window + 1 … to − 1`, if any; later queries need no older ones.
pub(crate) fn can_rewind(high: usize, to: usize, rings: &[Ring]) -> bool {
    rings.iter().all(|r| {
        let oldest_needed = (to + 1).saturating_sub(r.window);
        let oldest_held = high.saturating_sub(r.capacity);
        oldest_needed >= oldest_held.min(to)
    })
}

/// The caches of a program that forget.
pub(crate) fn rings(program: &Program, options: &LoadOptions) -> Vec<Ring> {
    let mut rings: Vec<Ring> = program
        .states()
        .iter()
        .filter_map(|s| {
            let capacity = s.capacity(options.max_context, options.max_chunk) as usize;
            s.window.map(|window| Ring { window: window as usize, capacity })
        })
        .collect();
    rings.sort_unstable_by_key(|r| (r.window, r.capacity));
    rings.dedup();
    rings
}

impl Slot {
    /// Tokens in the caches.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// How many tokens of `prompt` need not be run again. At least one is always left to run.
    pub(crate) fn reusable(
        &self,
        prompt: &[u32],
        soft: &[SoftRun],
        scope: u64,
        rings: &[Ring],
    ) -> usize {
        if self.scope != scope {
            return 0;
        }
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let common = common.min(prompt.len().saturating_sub(1));
        let common = self.same_soft(soft, common);
        if can_rewind(self.high, common, rings) { common } else { 0 }
    }

    /// How many of the first `common` positions hold the same soft tokens or none. A run that is
    /// only partly among them counts as not there.
    fn same_soft(&self, soft: &[SoftRun], common: usize) -> usize {
        let asked = soft.iter().map(key);
        let held = self.soft.iter().copied();
        let first = |run: Option<(usize, usize, [u8; 32])>| run.map_or(usize::MAX, |r| r.0);
        let mut pairs = Zipped { a: asked, b: held };
        let differ = pairs.find(|(a, b)| {
            let whole = a.is_some_and(|(start, n, _)| start + n <= common);
            a != b || !whole
        });
        differ.map_or(common, |(a, b)| common.min(first(a)).min(first(b)))
    }

    /// Takes the slot for a prompt and returns how many of its tokens are in the caches already.
    pub(crate) fn start(
        &mut self,
        prompt: &[u32],
        soft: &[SoftRun],
        scope: u64,
        rings: &[Ring],
    ) -> usize {
        let kept = self.reusable(prompt, soft, scope, rings);
        self.tokens.truncate(kept);
        self.soft.clear();
        self.soft.extend(soft.iter().map(key));
        self.scope = scope;
        if kept == 0 {
            self.high = 0;
        }
        kept
    }

    /// Notes tokens that were written behind those that are there.
    pub(crate) fn wrote(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.high = self.high.max(self.tokens.len());
    }

    /// Makes room, so that `wrote` does not allocate until `len` tokens are there.
    pub(crate) fn reserve(&mut self, len: usize) {
        self.tokens.reserve(len.saturating_sub(self.tokens.len()));
    }

    /// Trusts nothing in the caches any more.
    pub(crate) fn forget(&mut self) {
        self.tokens.clear();
        self.soft.clear();
        self.high = 0;
    }
}

/// What makes soft tokens the same.
fn key(run: &SoftRun) -> (usize, usize, [u8; 32]) {
    (run.start, run.input.n_soft, run.input.hash)
}

/// Two lists side by side, to the end of the longer one.
struct Zipped<A, B> {
    a: A,
    b: B,
}

impl<T, A: Iterator<Item = T>, B: Iterator<Item = T>> Iterator for Zipped<A, B> {
    type Item = (Option<T>, Option<T>);

    fn next(&mut self) -> Option<Self::Item> {
        match (self.a.next(), self.b.next()) {
            (None, None) => None,
            pair => Some(pair),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring that remembers which position each cell holds.
    struct Cells(Vec<Option<usize>>);

    impl Cells {
        fn new(capacity: usize) -> Self {
            Cells(vec![None; capacity])
        }

        /// Writes a chunk, then checks that each query of it finds its window.
        fn feed(&mut self, from: usize, n: usize, window: usize) -> bool {
            let capacity = self.0.len();
            for p in from..from + n {
                self.0[p % capacity] = Some(p);
            }
            (from..from + n).all(|p| {
                ((p + 1).saturating_sub(window)..=p).all(|k| self.0[k % capacity] == Some(k))
            })
        }
    }

    /// Everything up to a small size: write `first`, rewind, write `second`, rewind, write on.
    #[test]
    fn the_rule_is_exactly_what_a_ring_can_do() {
        let mut checked = 0;
        for window in 1..5 {
            for chunk in 1..5 {
                let capacity = window + chunk - 1;
                let rings = [Ring { window, capacity }];
                for first in 1..14usize {
                    for back in 0..=first {
                        for second in 1..6usize {
                            let mut cells = Cells::new(capacity);
                            assert!(feed_all(&mut cells, 0, first, chunk, window));
                            let fits = feed_all(&mut cells, back, second, 1, window);
                            assert_eq!(
                                can_rewind(first, back, &rings),
                                fits,
                                "window {window} capacity {capacity}: {first} back to {back}"
                            );
                            if !fits || back == 0 {
                                continue;
                            }
                            let (now, high) = (back + second, first.max(back + second));
                            for again in 0..=now {
                                let mut cells = Cells(cells.0.clone());
                                let fits = feed_all(&mut cells, again, 3, chunk, window);
                                assert_eq!(can_rewind(high, again, &rings), fits);
                                checked += 1;
                            }
                        }
                    }
                }
            }
        }
        assert!(checked > 10_000);
    }

    fn feed_all(cells: &mut Cells, from: usize, n: usize, chunk: usize, window: usize) -> bool {
        (from..from + n).step_by(chunk).all(|p| cells.feed(p, chunk.min(from + n - p), window))
    }

    #[test]
    fn flat_caches_rewind_anywhere() {
        assert!(can_rewind(1000, 1, &[]));
        // A ring that is as long as the context never wraps.
        assert!(can_rewind(100, 1, &[Ring { window: 4096, capacity: 100 }]));
    }

    #[test]
    fn a_slot_keeps_the_common_prefix_and_leaves_one_token_to_run() {
        let mut slot = Slot::default();
        assert_eq!(slot.start(&[1, 2, 3], &[], 0, &[]), 0);
        slot.wrote(&[1, 2, 3, 4]);
        assert_eq!(slot.reusable(&[1, 2, 3, 4], &[], 0, &[]), 3);
        assert_eq!(slot.reusable(&[1, 2, 3, 4, 5], &[], 0, &[]), 4);
        assert_eq!(slot.reusable(&[1, 2, 9], &[], 0, &[]), 2);
        assert_eq!(slot.reusable(&[9], &[], 0, &[]), 0);
        assert_eq!(slot.reusable(&[1, 2, 3, 4, 5], &[], 7, &[]), 0, "another scope");
        let tight = [Ring { window: 2, capacity: 2 }];
        assert_eq!(slot.reusable(&[1, 2, 3, 4, 5], &[], 0, &tight), 4);
        assert_eq!(slot.reusable(&[1, 2, 3], &[], 0, &tight), 0, "the ring has forgotten");
        slot.forget();
        assert_eq!(slot.len(), 0);
    }

    fn picture(start: usize, n_soft: usize, byte: u8) -> SoftRun {
        let input = crate::media::SoftInput {
            method: "vision",
            rows: ("patches", vec![]),
            indices: vec![],
            n_soft,
            block: true,
            hash: [byte; 32],
        };
        SoftRun { start, input: std::sync::Arc::new(input) }
    }

    #[test]
    fn another_picture_is_never_taken_for_the_one_that_is_cached() {
        let mut slot = Slot::default();
        let prompt = [1, 0, 0, 2, 0, 0, 3];
        let held = [picture(1, 2, 1), picture(4, 2, 2)];
        slot.start(&prompt, &held, 0, &[]);
        slot.wrote(&prompt);
        let same = |soft: &[SoftRun]| slot.reusable(&prompt, soft, 0, &[]);
        assert_eq!(same(&held), 6);
        assert_eq!(same(&[picture(1, 2, 1), picture(4, 2, 9)]), 4);
        assert_eq!(same(&[picture(1, 2, 9), picture(4, 2, 2)]), 1);
        assert_eq!(same(&[picture(4, 2, 2)]), 1, "text where a picture was");
        assert_eq!(same(&[picture(1, 2, 1)]), 4);
        assert_eq!(same(&[]), 1);
        // A prompt that ends in a picture leaves a token to run, and so the whole picture.
        assert_eq!(slot.reusable(&prompt[..6], &held, 0, &[]), 4);
        // The same picture at another place is another.
        let moved = [1, 2, 0, 0, 3];
        assert_eq!(slot.reusable(&moved, &[picture(2, 2, 1)], 0, &[]), 1);
        // What came after the pictures is compared as ever.
        let longer = [1, 0, 0, 2, 0, 0, 3, 4, 5];
        assert_eq!(slot.reusable(&longer, &held, 0, &[]), 7);
        let mut text = Slot::default();
        text.start(&prompt, &[], 0, &[]);
        text.wrote(&prompt);
        assert_eq!(text.reusable(&prompt, &held, 0, &[]), 1, "a picture where text was");
    }

    #[test]
    fn rewinding_twice_counts_from_the_highest_position() {
        let rings = [Ring { window: 4, capacity: 6 }];
        let mut slot = Slot::default();
        let prompt: Vec<u32> = (0..20).collect();
        slot.start(&prompt, &[], 0, &rings);
        slot.wrote(&prompt);
        let mut other = prompt[..18].to_vec();
        other.push(99);
        assert_eq!(slot.start(&other, &[], 0, &rings), 18);
        slot.wrote(&[99]);
        // From 19 tokens, two back would be fine; but position 20 was written once.
        assert_eq!(slot.start(&prompt[..18], &[], 0, &rings), 17);
        assert_eq!(slot.start(&prompt[..17], &[], 0, &rings), 0);
    }
}
