use lapidary_program::{DType, Encoding, Op, QuantLayout};

use super::linear::linear;
use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, OP, rows};
use crate::tolerance::SUMS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, experts, c, top_k) in
        [(1, 1, 3, 1), (3, 7, 33, 3), (7, 33, 64, 33), (33, 128, 257, 8), (5, 4, 16, 2)]
    {
        let mut encodings = vec![Encoding::Dense(DType::F32), Encoding::Dense(DType::Bf16)];
        if c % 32 == 0 {
            encodings.push(Encoding::Quant(QuantLayout::affine(4, 32, DType::Bf16)));
        }
        for encoding in encodings {
            for ties in [false, true] {
                cases.push(case(t, experts, c, top_k, encoding, ties));
            }
        }
    }
    cases
}

fn case(
    t: usize,
    n_experts: usize,
    c: usize,
    top_k: usize,
    encoding: Encoding,
    ties: bool,
) -> Case {
    let mut lab = Lab::new((n_experts * 1000 + c) as u64);
    let (w, dtype) = match (ties, encoding) {
        // All experts alike: the lowest numbers must win.
        (true, _) => {
            let row = lab.random.normals(c, 0.3);
            (lab.dense("w", &[n_experts, c], DType::F32, &row.repeat(n_experts)), "ties".into())
        }
        _ => (lab.weight("w", &[n_experts, c], encoding, 0.3), encoding.label()),
    };
    let scale = lab.weight("s", &[n_experts], Encoding::Dense(DType::F32), 1.0);
    let x = lab.random.normals(t * c, 1.0);
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    for scores in linear(&w, n_experts, &wide(&x)).chunks(n_experts) {
        let mut order: Vec<usize> = (0..n_experts).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(top_k);
        // A softmax over all that is then divided by the sum of the chosen is one over the chosen.
        let exps: Vec<f64> = order.iter().map(|e| (scores[*e] - scores[order[0]]).exp()).collect();
        let sum: f64 = exps.iter().sum();
        chosen.extend(order.iter().map(|e| *e as f64));
        weights.extend(order.iter().zip(&exps).map(|(e, x)| x / sum * scale[*e]));
    }
    let op = Op::Router { weight: "w".into(), expert_scale: "s".into(), top_k: top_k as u32 };
    Case {
        name: format!("{dtype}, {top_k} of {n_experts}×{c}, {t} tokens"),
        program: lab.one_op(op, &[("x", rows(c))]),
        options: options(t),
        calls: vec![Call {
            method: OP,
            feeds: vec![("x", Data::F32(x))],
            places: vec![],
            expected: vec![("y0", chosen), ("y1", weights)],
        }],
        tolerance: SUMS,
    }
}
