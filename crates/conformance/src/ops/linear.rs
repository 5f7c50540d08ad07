use lapidary_program::{DType, Encoding, Op};

use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, encodings, rows};
use crate::tolerance::LINEAR;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Every encoding, at one token, few, and enough for tiles with a rest.
    for (n, k) in [(33, 192), (7, 257), (48, 768)] {
        for encoding in encodings(k) {
            cases.push(case([1, 3, 41].to_vec(), n, k, encoding, false));
        }
    }
    // Odd shapes of the dense ones.
    let shapes = [
        (1, 1, 1),
        (1, 3, 7),
        (3, 7, 33),
        (7, 33, 3),
        (33, 257, 16),
        (257, 5, 64),
        (12, 96, 640),
        (25, 130, 257),
        (2, 17, 1030),
    ];
    for (t, n, k) in shapes {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            cases.push(case(vec![t], n, k, Encoding::Dense(dtype), true));
        }
    }
    cases
}

fn case(tokens: Vec<usize>, n: usize, k: usize, encoding: Encoding, bias: bool) -> Case {
    let mut lab = Lab::new((n * 1000 + k) as u64);
    let w = lab.weight("w", &[n, k], encoding, 1.0 / (k as f32).sqrt());
    let b = bias.then(|| lab.weight("b", &[n], Encoding::Dense(DType::F32), 1.0));
    let calls = tokens.iter().map(|t| {
        let x = lab.random.normals(t * k, 1.0);
        let mut expected = linear(&w, n, &x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>());
        if let Some(b) = &b {
            expected.iter_mut().zip(b.iter().cycle()).for_each(|(y, b)| *y += b);
        }
        Call::new(vec![("x", Data::F32(x))], expected)
    });
    let calls = calls.collect();
    let op = Op::Linear { weight: "w".into(), bias: bias.then(|| "b".into()) };
    let bias = if bias { ", bias" } else { "" };
    Case {
        name: format!("{}, {n}×{k}, {tokens:?} tokens{bias}", encoding.label()),
        program: lab.one_op(op, &[("x", rows(k))]),
        options: options(*tokens.iter().max().expect("there are calls")),
        calls,
        tolerance: LINEAR,
    }
}

/// `x [T, K] · Wᵀ`, `W [n, K]`.
pub(crate) fn linear(w: &[f64], n: usize, x: &[f64]) -> Vec<f64> {
    let k = w.len() / n;
    let dot = |row: &[f64], x: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum();
    x.chunks(k).flat_map(|x| w.chunks(k).map(move |row| dot(row, x))).collect()
}
