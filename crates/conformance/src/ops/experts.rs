use lapidary_program::{DType, Encoding, Op, QuantLayout, ValueId};

use super::gelu_gate::gelu_tanh;
use super::linear::linear;
use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, OP, Y, rows};
use crate::tolerance::SUMS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Few and many tokens for each expert, rows that fill no tile, widths that fill no unit.
    let shapes = [
        (1, 1, 3, 5, 1),
        (3, 5, 33, 7, 2),
        (33, 7, 64, 32, 4),
        (2, 16, 96, 64, 8),
        (19, 5, 40, 24, 2),
        (70, 3, 72, 40, 2),
        (140, 2, 64, 96, 1),
    ];
    for (t, n_experts, c, inner, top_k) in shapes {
        let mut encodings = vec![
            Encoding::Dense(DType::F32),
            Encoding::Dense(DType::F16),
            Encoding::Dense(DType::Bf16),
        ];
        if c % 32 == 0 && inner % 32 == 0 {
            encodings.push(Encoding::Quant(QuantLayout::symmetric(4, 32, DType::F16)));
            encodings.push(Encoding::Quant(QuantLayout::affine(8, 32, DType::Bf16)));
            encodings.push(Encoding::Quant(QuantLayout::affine(4, 16, DType::F32)));
        }
        for encoding in encodings {
            cases.push(case(t, n_experts, (c, inner), top_k, encoding));
        }
    }
    cases
}

fn case(
    t: usize,
    n_experts: usize,
    (c, inner): (usize, usize),
    top_k: usize,
    encoding: Encoding,
) -> Case {
    let mut lab = Lab::new((n_experts * 1000 + c) as u64);
    let scale = |n: usize| 1.0 / (n as f32).sqrt();
    let gate_up = lab.weight("gu", &[n_experts, 2 * inner, c], encoding, scale(c));
    let down = lab.weight("d", &[n_experts, c, inner], encoding, scale(inner));
    let x = lab.random.normals(t * c, 1.0);
    let sizes = lab.random.normals(t * top_k, 1.0);
    let firsts: Vec<usize> = (0..t).map(|_| lab.random.below(n_experts)).collect();
    // A router that gives back what it is fed: scores say who is chosen, and with what weight.
    let identity: Vec<f32> =
        (0..n_experts * n_experts).map(|i| f32::from(i % (n_experts + 1) == 0)).collect();
    lab.dense("router", &[n_experts, n_experts], DType::F32, &identity);
    let factors: Vec<f32> = (0..n_experts).map(|e| if e % 3 == 1 { -1.0 } else { 1.0 }).collect();
    lab.dense("factors", &[n_experts], DType::F32, &factors);
    let mut scores = vec![-30.0f32; t * n_experts];
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    for (token, scores) in scores.chunks_mut(n_experts).enumerate() {
        let experts: Vec<usize> = (0..top_k).map(|j| (firsts[token] + j * 3) % n_experts).collect();
        for (e, size) in experts.iter().zip(&sizes[token * top_k..]) {
            scores[*e] = size.abs().max(1e-3).ln();
        }
        let exp = |e: &usize| f64::from(scores[*e]).exp();
        let sum: f64 = experts.iter().map(exp).sum();
        weights.extend(experts.iter().map(|e| exp(e) / sum * f64::from(factors[*e])));
        chosen.extend(experts);
    }
    let mut expected = vec![0.0; t * c];
    for (i, e) in chosen.iter().enumerate() {
        let (token, e) = (i / top_k, *e);
        let size = 2 * inner * c;
        let made = linear(&gate_up[e * size..][..size], 2 * inner, &wide(&x[token * c..][..c]));
        let hidden: Vec<f64> = (0..inner).map(|j| gelu_tanh(made[j]) * made[inner + j]).collect();
        let size = c * inner;
        let made = linear(&down[e * size..][..size], c, &hidden);
        for (y, made) in expected[token * c..].iter_mut().zip(made) {
            *y += weights[i] * made;
        }
    }
    let router =
        Op::Router { weight: "router".into(), expert_scale: "factors".into(), top_k: top_k as u32 };
    lab.method(OP, 1 << 16, |graph| {
        let x = graph.input("x", rows(c));
        let scores = graph.input("scores", rows(n_experts));
        let chosen = graph.node("router", router, &[scores])?;
        let op = Op::Experts { gate_up: "gu".into(), down: "d".into() };
        let y = graph.node("node", op, &[x, chosen, ValueId(chosen.0 + 1)])?;
        graph.output(Y, y);
        Ok(())
    });
    let feeds = vec![("x", Data::F32(x)), ("scores", Data::F32(scores))];
    Case {
        name: format!("{}, {top_k} of {n_experts}×{c}×{inner}, {t} tokens", encoding.label()),
        program: lab.finish(16, 1 << 16),
        options: options(t),
        calls: vec![Call::new(feeds, expected)],
        tolerance: SUMS,
    }
}
