//! The draw: from the best candidates of a row to one token, the same on every device.
//!
//! Temperature 0 takes the first candidate. Else top-k, top-p and min-p cut the candidates, which
//! come best first, and the draw is Gumbel-max over those that are left: the token with the
//! greatest `logit / temperature − ln E(id)` wins, where `E(id)` is an exponential variate made from
//! `(seed, position, id)` alone:
//!
//! ```text
//! x = word (id mod 4) of Philox4x32-10(counter = [id / 4, position, 0, 0], key = [seed_lo, seed_hi])
//! v = (x + ½) · 2⁻³²          in (0, 1)
//! E = −ln(1 − v)
//! ```
//!
//! There is no generator state: the same logits, seed and position give the same token in any
//! batch, in any order of candidates.

mod philox;

use std::f64::consts::LN_2;

use lapidary_backend::{Candidate, DrawRule};

/// Memory that is kept from draw to draw.
#[derive(Debug, Default)]
pub struct Scratch {
    kept: Vec<Candidate>,
}

/// Draws from the candidates of a row; `None` if there is none to draw from.
pub fn draw(candidates: &[Candidate], rule: &DrawRule, scratch: &mut Scratch) -> Option<u32> {
    let possible = candidates.iter().filter(|c| c.value > f32::NEG_INFINITY);
    if rule.temperature == 0.0 || rule.top_k == 1 {
        return possible.take(1).next().map(|best| best.index);
    }
    let kept = &mut scratch.kept;
    kept.clear();
    let most = if rule.top_k == 0 { usize::MAX } else { rule.top_k as usize };
    kept.extend(possible.take(most));
    let best = kept.first()?.value;
    let inverse = 1.0 / f64::from(rule.temperature);
    if rule.top_p < 1.0 {
        keep_top_p(kept, best, inverse, f64::from(rule.top_p));
    }
    if rule.min_p > 0.0 {
        let least = f64::from(rule.min_p).ln();
        kept.retain(|c| f64::from(c.value - best) * inverse >= least);
    }
    gumbel_max(kept, best, inverse, rule.seed, rule.position)
}

/// Keeps the fewest best whose probabilities add up to `p`, of candidates that come best first.
fn keep_top_p(kept: &mut Vec<Candidate>, best: f32, inverse: f64, p: f64) {
    let weight = |c: &Candidate| (f64::from(c.value - best) * inverse).exp();
    let wanted = p * kept.iter().map(weight).sum::<f64>();
    let mut mass = 0.0;
    let enough = kept.iter().position(|c| {
        mass += weight(c);
        mass >= wanted
    });
    kept.truncate(enough.map_or(kept.len(), |i| i + 1));
}

/// The winner among candidates in any order; see the head of this file.
pub fn gumbel_max(
    candidates: &[Candidate],
    best: f32,
    inverse: f64,
    seed: u64,
    position: u32,
) -> Option<u32> {
    let mut winner: Option<(f64, u32)> = None;
    let mut words = philox::Words::new(seed, position);
    for c in candidates {
        let logit = f64::from(c.value - best) * inverse;
        let loses = |most: f64| winner.is_some_and(|(score, _)| logit + most < score);
        // E > v ≥ 2^(−1 − leading zeros of x), so most candidates are seen to lose without a
        // logarithm, and those that are far off without a random word.
        if loses(33.0 * LN_2) {
            continue;
        }
        let x = words.get(c.index);
        if loses(f64::from(x.leading_zeros() + 1) * LN_2) {
            continue;
        }
        let v = (f64::from(x) + 0.5) / 4_294_967_296.0;
        let score = logit - (-(-v).ln_1p()).ln();
        let better = match winner {
            None => true,
            Some((s, id)) => score > s || (score == s && c.index < id),
        };
        if better {
            winner = Some((score, c.index));
        }
    }
    winner.map(|(_, id)| id)
}
