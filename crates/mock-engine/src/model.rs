//! What a token is to the mock: a number made of the token and of all that it sees.

use crate::program::CHANNELS;

/// A number for a token or a soft row.
pub(crate) fn value(token: u32) -> u64 {
    mix(u64::from(token) ^ 0x5bd1_e995)
}

/// A number for a soft row.
pub(crate) fn soft_value(row: &[f32]) -> u64 {
    row.iter().fold(0x50f7, |h, x| mix(h ^ u64::from(x.to_bits())))
}

/// Adds what is at one position to what is before it.
pub(crate) fn fold(before: u64, state: u64) -> u64 {
    before.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(state)
}

/// What a token becomes: `seen` is one fold for each group of caches, `ahead` one over the values
/// of later tokens of its block.
pub(crate) fn state(value: u64, seen: impl Iterator<Item = u64>, ahead: u64) -> u64 {
    mix(seen.fold(value, |h, x| mix(h ^ x).rotate_left(7)) ^ ahead)
}

/// One number for each token of the vocabulary.
pub(crate) fn logits(state: u64, vocab: usize) -> impl Iterator<Item = f32> {
    (0..vocab).map(move |v| (mix(state ^ mix(v as u64)) >> 40) as f32 / (1u32 << 21) as f32 - 4.0)
}

/// The row that logits are made of.
pub(crate) fn hidden(state: u64) -> impl Iterator<Item = f32> {
    logits(state ^ 0x41dd, CHANNELS as usize)
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// What the mock says of a text, computed without pages.
#[derive(Clone, Debug)]
pub struct Oracle {
    windows: Vec<Option<u32>>,
    vocab: usize,
    states: Vec<u64>,
    /// The fold over all states.
    whole: u64,
}

impl Oracle {
    pub(crate) fn new(windows: Vec<Option<u32>>, vocab: usize) -> Self {
        Oracle { windows, vocab, states: Vec::new(), whole: 0 }
    }

    /// Adds a token.
    pub fn push(&mut self, token: u32) {
        let p = self.states.len();
        let seen = self.windows.iter().map(|window| match window {
            None => self.whole,
            Some(window) => {
                let from = (p + 1).saturating_sub(*window as usize).min(p);
                self.states[from..].iter().fold(0, |h, state| fold(h, *state))
            }
        });
        let state = state(value(token), seen, 0);
        self.states.push(state);
        self.whole = fold(self.whole, state);
    }

    /// The logits after the last token.
    pub fn logits(&self) -> Vec<f32> {
        logits(self.states.last().copied().unwrap_or(0), self.vocab).collect()
    }

    /// The hidden row of the last token.
    pub fn hidden(&self) -> Vec<f32> {
        hidden(self.states.last().copied().unwrap_or(0)).collect()
    }

    /// The most likely token after the last.
    pub fn greedy(&self) -> u32 {
        let row = self.logits();
        let best = row.iter().copied().fold(f32::MIN, f32::max);
        row.iter().position(|x| *x == best).map_or(0, |i| i as u32)
    }
}
