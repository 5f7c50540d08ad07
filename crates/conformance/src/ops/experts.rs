use lapidary_program::{DType, Dim, Encoding, Op, QuantLayout, Sym, ValueType};

use super::gelu_gate::gelu_tanh;
use super::linear::linear;
use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::SUMS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let shapes = [(1, 1, 3, 5, 1), (3, 5, 33, 7, 2), (33, 7, 64, 32, 4), (2, 16, 96, 64, 8)];
    for (t, n_experts, c, inner, top_k) in shapes {
        let mut encodings = vec![
            Encoding::Dense(DType::F32),
            Encoding::Dense(DType::F16),
            Encoding::Dense(DType::Bf16),
        ];
        if c % 32 == 0 && inner % 32 == 0 {
            encodings.push(Encoding::Quant(QuantLayout::symmetric(4, 32, DType::F16)));
            encodings.push(Encoding::Quant(QuantLayout::affine(8, 32, DType::Bf16)));
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
    let weights = lab.random.normals(t * top_k, 1.0);
    let mut chosen = Vec::new();
    for _ in 0..t {
        let first = lab.random.below(n_experts);
        chosen.extend((0..top_k).map(|j| ((first + j * 3) % n_experts) as i32));
    }
    let mut expected = vec![0.0; t * c];
    for (i, e) in chosen.iter().enumerate() {
        let (token, e) = (i / top_k, *e as usize);
        let size = 2 * inner * c;
        let made = linear(&gate_up[e * size..][..size], 2 * inner, &wide(&x[token * c..][..c]));
        let hidden: Vec<f64> = (0..inner).map(|j| gelu_tanh(made[j]) * made[inner + j]).collect();
        let size = c * inner;
        let made = linear(&down[e * size..][..size], c, &hidden);
        for (y, made) in expected[token * c..].iter_mut().zip(made) {
            *y += f64::from(weights[i]) * made;
        }
    }
    let shape = vec![Dim::Sym(Sym::Tokens), Dim::Fixed(top_k as u64)];
    let inputs = [
        ("x", rows(c)),
        ("experts", ValueType::I32(shape.clone())),
        ("weights", ValueType::F32(shape)),
    ];
    let feeds =
        vec![("x", Data::F32(x)), ("experts", Data::I32(chosen)), ("weights", Data::F32(weights))];
    Case {
        name: format!("{}, {top_k} of {n_experts}×{c}×{inner}, {t} tokens", encoding.label()),
        program: lab.one_op(Op::Experts { gate_up: "gu".into(), down: "d".into() }, &inputs),
        options: options(t),
        calls: vec![Call::new(feeds, expected)],
        tolerance: SUMS,
    }
}
