use lapidary_backend::LoadOptions;
use lapidary_program::{Op, Sym, ValueType};

use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::Lab;
use crate::tolerance::SUMS;

/// How the scores of a case are.
#[derive(Clone, Copy, Debug)]
enum Scores {
    /// A few above and below 0.
    Mild,
    /// Hundreds: each query is along one key, which takes all the weight.
    Sharp,
    /// Each key's larger than the one's before, so that the largest changes until the end.
    Rising,
    /// Each key's smaller.
    Falling,
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for head_dim in [1, 7, 12, 16, 64, 72, 80, 128] {
        for (p, heads) in [(1, 2), (5, 1), (16, 3), (33, 5)] {
            cases.push(case(&[p], heads, head_dim, Scores::Mild));
        }
    }
    // One more and one less than what kernels like, and calls that grow.
    for p in [15, 17, 47, 48, 49, 127, 128, 129, 300] {
        cases.push(case(&[p], 2, 12, Scores::Mild));
    }
    cases.push(case(&[3, 577, 260, 1], 3, 72, Scores::Mild));
    cases.push(case(&[40, 9], 6, 64, Scores::Mild));
    for scores in [Scores::Sharp, Scores::Rising, Scores::Falling] {
        cases.push(case(&[290], 2, 72, scores));
        cases.push(case(&[9], 2, 16, scores));
    }
    cases
}

fn case(lengths: &[usize], heads: usize, head_dim: usize, scores: Scores) -> Case {
    let mut lab = Lab::new((lengths[0] * 1000 + heads * 100 + head_dim) as u64);
    let c = heads * head_dim;
    let scale = if head_dim == 64 { 1.0 } else { 1.0 / (head_dim as f32).sqrt() };
    let calls = lengths.iter().map(|p| {
        let mut q = lab.random.normals(p * c, 1.0);
        let mut k = lab.random.normals(p * c, if head_dim == 64 { 0.2 } else { 1.0 });
        let v = lab.random.normals(p * c, 1.0);
        // Key after key more, or less, along the first query.
        let mut slope = |step: f32| {
            for (row, key) in k.chunks_mut(c).enumerate() {
                let along = step * row as f32 / (head_dim as f32).sqrt();
                key.iter_mut().zip(&q[..c]).for_each(|(k, q)| *k = 0.1 * *k + along * q);
            }
        };
        match scores {
            Scores::Mild => {}
            Scores::Rising => slope(0.1),
            Scores::Falling => slope(-0.1),
            Scores::Sharp => {
                for (row, query) in q.chunks_mut(c).enumerate() {
                    let key = &k[row * 7 % p * c..][..c];
                    query.iter_mut().zip(key).for_each(|(q, k)| *q = 40.0 * k);
                }
            }
        }
        let expected = attend((&wide(&q), &wide(&k), &wide(&v)), c, head_dim, scale.into());
        let feeds = vec![("q", Data::F32(q)), ("k", Data::F32(k)), ("v", Data::F32(v))];
        Call::new(feeds, expected)
    });
    let calls = calls.collect();
    let op = Op::SelfAttention { n_heads: heads as u32, head_dim: head_dim as u32, scale };
    let rows = ValueType::rows(Sym::Patches, c as u64);
    let inputs = ["q", "k", "v"].map(|name| (name, rows.clone()));
    Case {
        name: format!("{lengths:?} rows, {heads} heads of {head_dim}, {scores:?}"),
        program: lab.one_op(op, &inputs),
        // Room for the first call; later ones may be longer.
        options: LoadOptions { max_patches: lengths[0] as u32, ..options(1) },
        calls,
        tolerance: SUMS,
    }
}

fn attend((q, k, v): (&[f64], &[f64], &[f64]), c: usize, head_dim: usize, scale: f64) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    for (i, out) in out.chunks_mut(head_dim).enumerate() {
        let (q, start) = (&q[i * head_dim..(i + 1) * head_dim], i * head_dim % c);
        let head = |x: &[f64]| x[start..start + head_dim].to_vec();
        let dot = |k: Vec<f64>| q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() * scale;
        let scores: Vec<f64> = k.chunks(c).map(|k| dot(head(k))).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (weight, v) in weights.iter().zip(v.chunks(c)) {
            out.iter_mut().zip(head(v)).for_each(|(o, v)| *o += weight / sum * v);
        }
    }
    out
}
