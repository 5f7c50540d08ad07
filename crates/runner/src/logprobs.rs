//! How likely tokens were.

use lapidary_backend::{Mask, OutputResult};

use crate::request::Logprobs;

/// Finds the log-probabilities of a token and of the `n` likeliest in a row of logits, which is
/// there whole or with its largest numbers and their log-sum-exp.
pub(crate) fn fill(
    found: &mut Logprobs,
    out: &OutputResult,
    row: usize,
    mask: Mask<'_>,
    id: u32,
    n: usize,
) {
    found.top.clear();
    if out.per_row > 0 {
        let candidates = out.candidates_of(row).iter().filter(|c| c.value > f32::NEG_INFINITY);
        let sum = out.logsumexp.get(row).copied().unwrap_or(0.0);
        let taken = candidates.clone().find(|c| c.index == id).map_or(f32::MIN, |c| c.value);
        found.logprob = taken - sum;
        found.top.extend(candidates.take(n).map(|c| (c.index, c.value - sum)));
        return;
    }
    let logits = out.row(row);
    let counts = |i: usize| {
        mask.is_none_or(|bits| bits.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 1))
    };
    let counted = || logits.iter().enumerate().filter(|(i, _)| counts(*i));
    let max = counted().fold(f32::NEG_INFINITY, |m, (_, x)| m.max(*x));
    let sum: f64 = counted().map(|(_, x)| f64::from(x - max).exp()).sum();
    let sum = (f64::from(max) + sum.ln()) as f32;
    found.logprob = logits.get(id as usize).map_or(f32::MIN, |x| x - sum);
    if n == 0 {
        return;
    }
    for (i, x) in counted() {
        let lp = x - sum;
        if found.top.len() == n && found.top.last().is_some_and(|(_, least)| *least >= lp) {
            continue;
        }
        let at = found.top.partition_point(|(_, better)| *better >= lp);
        found.top.insert(at, (i as u32, lp));
        found.top.truncate(n);
    }
}

#[cfg(test)]
mod tests {
    use lapidary_backend::{Results, TopK, Want};
    use lapidary_backend_kit::answer;

    use super::*;

    #[test]
    fn whole_rows_and_candidates_say_the_same() {
        let logits: Vec<f32> = (0..300).map(|i| ((i * 7919) % 101) as f32 / 9.0 - 5.0).collect();
        let mask: Vec<u32> = (0..10).map(|i| 0x5a5a_a5a5u32.rotate_left(i)).collect();
        for mask in [None, Some(mask.as_slice())] {
            let mut whole = Results::default();
            answer(&mut whole, ("logits", 100), &logits, &Want::Whole);
            let masks = [mask; 3];
            let top = TopK { k: 40, masks: &masks, logsumexp: true };
            let mut largest = Results::default();
            answer(&mut largest, ("logits", 100), &logits, &Want::TopK(top));
            for row in 0..3 {
                let (a, b) = (whole.get("logits").unwrap(), largest.get("logits").unwrap());
                let id = b.candidates_of(row)[3].index;
                let (mut x, mut y) = (Logprobs::default(), Logprobs::default());
                fill(&mut x, a, row, mask, id, 5);
                fill(&mut y, b, row, mask, id, 5);
                assert_eq!(x.top.len(), 5);
                let ids = |l: &Logprobs| l.top.iter().map(|t| t.0).collect::<Vec<_>>();
                assert_eq!(ids(&x), ids(&y));
                assert!((x.logprob - y.logprob).abs() < 1e-5);
                assert!(x.top.contains(&(id, x.logprob)));
                fill(&mut x, a, row, mask, id, 100);
                let all: f32 = x.top.iter().map(|t| t.1.exp()).sum();
                assert!((all - 1.0).abs() < 1e-4, "{all}");
            }
        }
    }
}
