use lapidary_program::{DType, Encoding, Op, QuantLayout};

use super::linear::linear;
use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::SUMS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, centroids, per, c, top) in
        [(1, 1, 3, 5, 1), (3, 7, 5, 33, 2), (7, 33, 4, 64, 33), (2, 64, 32, 257, 8)]
    {
        let mut encodings = vec![Encoding::Dense(DType::F32), Encoding::Dense(DType::Bf16)];
        if c % 32 == 0 {
            encodings.push(Encoding::Quant(QuantLayout::affine(4, 32, DType::Bf16)));
        }
        for encoding in encodings {
            cases.push(case(t, centroids, per, (c, top), encoding));
        }
    }
    cases
}

fn case(
    t: usize,
    n_centroids: usize,
    per: usize,
    (c, top): (usize, usize),
    encoding: Encoding,
) -> Case {
    let mut lab = Lab::new((n_centroids * 1000 + c) as u64);
    let vocab = n_centroids * per;
    let scale = 1.0 / (c as f32).sqrt();
    let centroids = lab.weight("c", &[n_centroids, c], encoding, scale);
    let embedding = lab.weight("e", &[vocab, c], encoding, scale);
    let mut ordering: Vec<i64> = (0..vocab as i64).collect();
    for i in (1..vocab).rev() {
        let j = lab.random.below(i + 1);
        ordering.swap(i, j);
    }
    lab.indices("o", &ordering);
    let x = lab.random.normals(t * c, 1.0);
    let mut expected = Vec::new();
    for x in x.chunks(c) {
        let x = wide(x);
        let scores = linear(&centroids, n_centroids, &x);
        let mut order: Vec<usize> = (0..n_centroids).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let tokens: Vec<usize> = order[..top]
            .iter()
            .flat_map(|best| &ordering[best * per..(best + 1) * per])
            .map(|token| *token as usize)
            .collect();
        let all = linear(&embedding, vocab, &x);
        let least = tokens.iter().map(|token| all[*token]).fold(f64::INFINITY, f64::min);
        let mut logits = vec![least - 1.0; vocab];
        tokens.iter().for_each(|token| logits[*token] = all[*token]);
        expected.extend(logits);
    }
    let op = Op::CentroidHead {
        centroids: "c".into(),
        ordering: "o".into(),
        embedding: "e".into(),
        top: top as u32,
    };
    Case {
        name: format!("{}, {top} of {n_centroids}×{per}, {c}, {t} tokens", encoding.label()),
        program: lab.one_op(op, &[("x", rows(c))]),
        options: options(t),
        calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
        tolerance: SUMS,
    }
}
