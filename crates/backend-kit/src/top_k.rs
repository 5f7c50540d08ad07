//! The largest numbers of a row, and what becomes of an output, on the host.

use lapidary_backend::{Candidate, Mask, OutputResult, Results, TopK, Want};

use crate::draw::{self, Scratch};

/// Gives a caller what it wants of an output whose rows are on the host.
pub fn answer(
    results: &mut Results,
    (name, channels): (&str, usize),
    data: &[f32],
    want: &Want<'_>,
) {
    if !want.is_read() {
        return;
    }
    let rows = data.len() / channels.max(1);
    let out = results.add(name, rows, channels);
    match want {
        Want::Skip | Want::Keep => {}
        Want::Whole => out.data.extend_from_slice(data),
        Want::TopK(top) => answer_top(out, data, top),
        Want::Draw(drawn) => {
            answer_top(out, data, &drawn.top);
            let mut scratch = Scratch::default();
            for (row, rule) in drawn.rules.iter().enumerate().take(rows) {
                let candidates = &out.candidates[row * out.per_row..(row + 1) * out.per_row];
                out.drawn.push(draw::draw(candidates, rule, &mut scratch).unwrap_or(0));
            }
        }
    }
}

fn answer_top(out: &mut OutputResult, data: &[f32], top: &TopK<'_>) {
    let channels = out.channels;
    out.per_row = top.k.min(channels);
    for (r, row) in data.chunks_exact(channels.max(1)).enumerate() {
        let mask = top.masks.get(r).copied().flatten();
        top_k(row, out.per_row, mask, &mut out.candidates);
        if top.logsumexp {
            out.logsumexp.push(logsumexp(row, mask));
        }
    }
}

/// Up to so many are kept sorted while a row is read; more are found among all of it.
const FEW: usize = 128;

/// Adds the `k` largest numbers of a row to `out`, as [`OutputResult::candidates`] has them.
pub fn top_k(row: &[f32], k: usize, mask: Mask<'_>, out: &mut Vec<Candidate>) {
    let start = out.len();
    let candidates = row.iter().enumerate().filter(|(i, _)| counts(mask, *i)).map(|(i, x)| {
        let value = if x.is_finite() { *x } else { f32::NAN };
        Candidate { value, index: i as u32 }
    });
    let nothing = Candidate { value: f32::NEG_INFINITY, index: 0 };
    if k > FEW {
        out.extend(candidates);
        let order = |a: &Candidate, b: &Candidate| before(b, a).cmp(&before(a, b));
        if out.len() - start > k {
            out[start..].select_nth_unstable_by(k, order);
            out.truncate(start + k);
        }
        out[start..].sort_unstable_by(order);
        out.resize(start + k, nothing);
        return;
    }
    let mut least: Option<Candidate> = None;
    for found in candidates {
        if least.is_some_and(|least| !before(&found, &least)) {
            continue;
        }
        let at = out[start..].partition_point(|kept| before(kept, &found));
        out.insert(start + at, found);
        if out.len() - start > k {
            out.pop();
        }
        if out.len() - start == k {
            least = out.last().copied();
        }
    }
    out.resize(start + k, nothing);
}

/// `ln Σ eˣ` of a row.
fn logsumexp(row: &[f32], mask: Mask<'_>) -> f32 {
    let counted = || row.iter().enumerate().filter(|(i, _)| counts(mask, *i)).map(|(_, x)| *x);
    let max = counted().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return max;
    }
    let sum: f64 = counted().map(|x| f64::from(x - max).exp()).sum();
    (f64::from(max) + sum.ln()) as f32
}

fn counts(mask: Mask<'_>, i: usize) -> bool {
    mask.is_none_or(|bits| bits.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 1))
}

/// Whether one comes before another: not finite, then larger, then a lower index.
fn before(a: &Candidate, b: &Candidate) -> bool {
    match (a.value.is_nan(), b.value.is_nan()) {
        (true, true) => a.index < b.index,
        (true, false) => true,
        (false, true) => false,
        (false, false) => a.value > b.value || (a.value == b.value && a.index < b.index),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(row: &[f32], k: usize, mask: Mask<'_>) -> Vec<(f32, u32)> {
        let mut out = Vec::new();
        top_k(row, k, mask, &mut out);
        out.iter().map(|c| (c.value, c.index)).collect()
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_nan_comes_first() {
        assert_eq!(found(&[1.0, 3.0, 3.0, 2.0], 3, None), [(3.0, 1), (3.0, 2), (2.0, 3)]);
        let odd = found(&[1.0, f32::INFINITY, 3.0], 2, None);
        assert!(odd[0].0.is_nan() && odd[0].1 == 1 && odd[1] == (3.0, 2));
        let masked = found(&[1.0, 3.0, 2.0], 2, Some(&[0b101]));
        assert_eq!(masked, [(2.0, 2), (1.0, 0)]);
        let nothing_left = found(&[1.0, 3.0], 2, Some(&[0b01]));
        assert_eq!(nothing_left, [(1.0, 0), (f32::NEG_INFINITY, 0)]);
    }

    proptest! {
        #[test]
        fn the_largest_are_those_of_a_sorted_row(
            row in prop::collection::vec(-8i8..8, 1..400),
            k in prop_oneof![1usize..40, 128usize..200],
        ) {
            let row: Vec<f32> = row.into_iter().map(|x| f32::from(x) / 2.0).collect();
            let mut sorted: Vec<(f32, u32)> =
                row.iter().enumerate().map(|(i, x)| (*x, i as u32)).collect();
            sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let k = k.min(row.len());
            // Zeros of either sign are equal, so total order differs there.
            let positive: Vec<f32> = row.iter().map(|x| x + 100.0).collect();
            let got: Vec<u32> = found(&positive, k, None).iter().map(|c| c.1).collect();
            let want: Vec<u32> = sorted[..k].iter().map(|c| c.1).collect();
            prop_assert_eq!(got, want);
            let lse = logsumexp(&positive, None);
            let plain = positive.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
            prop_assert!((f64::from(lse) - plain).abs() < 1e-4);
        }
    }
}
