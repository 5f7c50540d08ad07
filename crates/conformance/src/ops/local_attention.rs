use lapidary_backend::LoadOptions;
use lapidary_program::{DType, Encoding, LocalAttentionSpec, Op, QuantLayout, Sym, ValueType};

use super::wide;
use crate::case::{Call, Case, Data, options};
use crate::lab::Lab;
use crate::tolerance::SUMS;

/// The weights of a case as they are.
struct Weights {
    per_dim_scale: Vec<f64>,
    /// `[n_heads·head_dim, C]`.
    relative: Vec<f64>,
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let dense = [DType::F32, DType::Bf16, DType::F16].map(Encoding::Dense);
    let q8 = Encoding::Quant(QuantLayout::symmetric(8, 32, DType::F16));
    for (i, (heads, head_dim, cols)) in
        [(1, 1, 4), (2, 16, 6), (3, 12, 32), (2, 72, 64), (8, 128, 32), (5, 20, 10)]
            .into_iter()
            .enumerate()
    {
        for (lengths, window) in
            [(vec![1], 12), (vec![5, 3], 100), (vec![13], 12), (vec![40, 1, 41], 4), (vec![9], 1)]
        {
            let encoding = if cols == 32 { q8 } else { dense[(i + window as usize) % 3] };
            let softplus = (i + lengths[0]) % 2 == 0;
            let cap = if i % 2 == 0 { 50.0 } else { 1.5 };
            let spec = LocalAttentionSpec {
                n_heads: heads,
                head_dim,
                window,
                cap,
                q_scale: 1.5 / (head_dim as f32).sqrt(),
                k_scale: 1.9,
                per_dim_scale: "scale".into(),
                softplus,
                relative: "relative".into(),
            };
            cases.push(case(&lengths, spec, cols, encoding));
        }
    }
    cases
}

fn case(lengths: &[usize], spec: LocalAttentionSpec, cols: usize, encoding: Encoding) -> Case {
    let (n_heads, head_dim) = (spec.n_heads as usize, spec.head_dim as usize);
    let c = n_heads * head_dim;
    let mut lab = Lab::new((lengths[0] * 1000 + c) as u64);
    let weights = Weights {
        per_dim_scale: lab.weight("scale", &[head_dim], Encoding::Dense(DType::F32), 1.0),
        relative: lab.weight("relative", &[c, cols], encoding, 1.0 / (cols as f32).sqrt()),
    };
    let calls = lengths.iter().map(|n| {
        let [q, k, v] = [(); 3].map(|()| lab.random.normals(n * c, 1.0));
        let expected = attend(&spec, &weights, [&wide(&q), &wide(&k), &wide(&v)]);
        let feeds = vec![("q", Data::F32(q)), ("k", Data::F32(k)), ("v", Data::F32(v))];
        Call::new(feeds, expected)
    });
    let calls = calls.collect();
    let rows = ValueType::rows(Sym::Frames, c as u64);
    let inputs = ["q", "k", "v"].map(|name| (name, rows.clone()));
    Case {
        name: format!(
            "{lengths:?} rows by {}, {n_heads} heads of {head_dim}, {cols} waves {}, cap {}, softplus {}",
            spec.window,
            encoding.label(),
            spec.cap,
            spec.softplus
        ),
        program: lab.one_op(Op::LocalAttention(spec), &inputs),
        options: LoadOptions { max_frames: lengths[0] as u32, ..options(1) },
        calls,
        tolerance: SUMS,
    }
}

fn attend(spec: &LocalAttentionSpec, weights: &Weights, [q, k, v]: [&[f64]; 3]) -> Vec<f64> {
    let head_dim = spec.head_dim as usize;
    let c = spec.n_heads as usize * head_dim;
    let factor = |d: usize| {
        let s = weights.per_dim_scale[d];
        f64::from(spec.q_scale) * if spec.softplus { s.exp().ln_1p() } else { s }
    };
    let mut out = vec![0.0; q.len()];
    for t in 0..q.len() / c {
        for h in 0..spec.n_heads as usize {
            let at = |row: usize, d: usize| row * c + h * head_dim + d;
            let seen = 0..(t + 1).min(spec.window as usize);
            let score = |distance: usize| {
                let one = |d: usize| {
                    let key = k[at(t - distance, d)] * f64::from(spec.k_scale);
                    let place = place(&weights.relative, c, h * head_dim + d, distance);
                    q[at(t, d)] * factor(d) * (key + place)
                };
                let cap = f64::from(spec.cap);
                cap * ((0..head_dim).map(one).sum::<f64>() / cap).tanh()
            };
            let exps: Vec<f64> = seen.clone().map(|distance| score(distance).exp()).collect();
            let sum: f64 = exps.iter().sum();
            for d in 0..head_dim {
                let weighted = seen.clone().zip(&exps).map(|(i, e)| e * v[at(t - i, d)]);
                out[at(t, d)] = weighted.sum::<f64>() / sum;
            }
        }
    }
    out
}

/// One channel of `R(distance)`.
fn place(relative: &[f64], n_rows: usize, row: usize, distance: usize) -> f64 {
    let cols = relative.len() / n_rows;
    let half = cols / 2;
    let wave = |i: usize| {
        let turn = 1e4f64.powf(-((i % half) as f64) / (half as f64 - 1.0));
        let angle = distance as f64 * turn;
        if i < half { angle.sin() } else { angle.cos() }
    };
    (0..cols).map(|i| relative[row * cols + i] * wave(i)).sum()
}
