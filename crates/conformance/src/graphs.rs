//! Random graphs of cheap ops: values that are read twice by one node, long after they were made,
//! or never; outputs that are inputs, or named twice. They find buffers that are reused too early.

use lapidary_program::{Activation, DType, Dim, GraphBuilder, Op, Sym, ValueId, ValueType, input};

use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, OP};
use crate::ops::{activation, gelu_tanh, sigmoid};
use crate::random::Random;
use crate::tolerance::SUMS;

const GRAPHS: u64 = 80;
const NODES: usize = 24;
const CHANNELS: usize = 6;
const MAX_CHANNELS: usize = 24;
const TOKENS: usize = 5;
const ROWS: [i32; 3] = [4, 0, 4];
/// Bounds of the clamps.
const LOW: f64 = -0.5;
const HIGH: f64 = 2.0;
const TOKEN_ROWS: Dim = Dim::Sym(Sym::Tokens);
const OUTPUTS: [&str; 4] = ["out0", "out1", "out2", "out3"];

/// A value of a graph with its numbers.
#[derive(Clone)]
struct Value {
    id: ValueId,
    len: Dim,
    channels: usize,
    data: Vec<f64>,
}

pub(crate) fn cases() -> Vec<Case> {
    (0..GRAPHS).map(case).collect()
}

fn case(seed: u64) -> Case {
    let mut lab = Lab::new(seed);
    lab.dense("low", &[1], DType::F32, &[LOW as f32]);
    lab.dense("high", &[1], DType::F32, &[HIGH as f32]);
    let fed = [(); 2].map(|()| lab.random.normals(TOKENS * CHANNELS, 1.0));
    let mut random = Random::new(seed + 1000);
    let mut expected = Vec::new();
    lab.method(OP, 1 << 16, |graph| {
        let mut values = Vec::new();
        for (name, data) in ["a", "b"].into_iter().zip(&fed) {
            let id = graph.input(name, ValueType::rows(Sym::Tokens, CHANNELS as u64));
            let data = data.iter().map(|x| f64::from(*x)).collect();
            values.push(Value { id, len: TOKEN_ROWS, channels: CHANNELS, data });
        }
        let rows = graph.input(input::ROWS, ValueType::indices(Sym::Rows));
        for i in 0..NODES {
            let made = grow(graph, &mut random, &values, rows, &format!("node{i}"))?;
            values.push(made);
        }
        for name in OUTPUTS {
            let value = &values[random.below(values.len())];
            graph.output(name, value.id);
            expected.push((name, value.data.clone()));
        }
        Ok(())
    });
    let [a, b] = fed.map(Data::F32);
    let feeds = vec![("a", a), ("b", b), (input::ROWS, Data::I32(ROWS.to_vec()))];
    let call =
        || Call { method: OP, feeds: feeds.clone(), places: vec![], expected: expected.clone() };
    Case {
        name: format!("seed {seed}"),
        // The second call finds the buffers as the first one left them.
        calls: vec![call(), call()],
        program: lab.finish(1, 1 << 16),
        options: options(TOKENS),
        tolerance: 4.0 * SUMS,
    }
}

/// Adds one random node and computes what it makes.
fn grow(
    graph: &mut GraphBuilder<'_>,
    random: &mut Random,
    values: &[Value],
    rows: ValueId,
    name: &str,
) -> lapidary_program::Result<Value> {
    let x = &values[random.below(values.len())];
    let peers: Vec<&Value> = values.iter().filter(|v| v.len == x.len).collect();
    let like: Vec<&&Value> = peers.iter().filter(|v| v.channels == x.channels).collect();
    // Now and then the value itself.
    let y = if random.below(4) == 0 { x } else { like[random.below(like.len())] };
    let z = peers[random.below(peers.len())];
    let pairs = || x.data.iter().zip(&y.data);
    let largest = x.data.iter().chain(&y.data).fold(0.0f64, |m, v| m.max(v.abs()));
    let unary = |f: &dyn Fn(f64) -> f64| x.data.iter().map(|v| f(*v)).collect::<Vec<f64>>();
    let chunks = || x.data.chunks(x.channels);
    let (op, inputs, channels, data) = match random.below(12) {
        // Keeps products from running away.
        _ if largest > 20.0 => {
            (Op::SoftCap { cap: 4.0 }, vec![x.id], x.channels, unary(&|v| 4.0 * (v / 4.0).tanh()))
        }
        0 => (Op::Add, vec![x.id, y.id], x.channels, pairs().map(|(a, b)| a + b).collect()),
        1 => {
            let made = pairs().map(|(a, b)| gelu_tanh(*a) * b).collect();
            (Op::GeluGate, vec![x.id, y.id], x.channels, made)
        }
        2 => (Op::Scale { factor: -0.75 }, vec![x.id], x.channels, unary(&|v| v * -0.75)),
        3 => {
            let op = Op::RmsNorm { weight: None, eps: 0.5, offset: 0.0, width: x.channels as u32 };
            let norm = |row: &[f64]| {
                let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
                row.iter().map(|v| v / (mean + 0.5).sqrt()).collect::<Vec<f64>>()
            };
            (op, vec![x.id], x.channels, chunks().flat_map(norm).collect())
        }
        4 => {
            let start = random.below(x.channels);
            let len = 1 + random.below(x.channels - start);
            let op = Op::Slice { start: start as u32, len: len as u32 };
            let made = chunks().flat_map(|row| row[start..start + len].to_vec()).collect();
            (op, vec![x.id], len, made)
        }
        5 if x.channels + z.channels <= MAX_CHANNELS => {
            let rows = chunks().zip(z.data.chunks(z.channels));
            let made = rows.flat_map(|(a, b)| [a, b].concat()).collect();
            (Op::Concat, vec![x.id, z.id], x.channels + z.channels, made)
        }
        6 if x.len == TOKEN_ROWS => {
            let row = |r: &i32| x.data[*r as usize * x.channels..][..x.channels].to_vec();
            let made = ROWS.iter().flat_map(row).collect();
            (Op::GatherRows, vec![x.id, rows], x.channels, made)
        }
        7 => {
            let made = pairs().map(|(a, b)| a * sigmoid(*b)).collect();
            (Op::SigmoidGate, vec![x.id, y.id], x.channels, made)
        }
        8 => {
            let function = Activation::Silu;
            (Op::Activate { function }, vec![x.id], x.channels, unary(&|v| activation(function, v)))
        }
        9 => {
            let op = Op::Clamp { low: "low".into(), high: "high".into() };
            (op, vec![x.id], x.channels, unary(&|v| v.clamp(LOW, HIGH)))
        }
        10 if x.len == TOKEN_ROWS => {
            let mut made = vec![0.0; x.channels];
            for row in chunks() {
                made.iter_mut().zip(row).for_each(|(m, v)| *m += v / TOKENS as f64);
            }
            (Op::PoolRows { size: TOKENS as u32 }, vec![x.id], x.channels, made)
        }
        11 => {
            let (n_heads, head_dim) = (1, x.channels as u32);
            let op = Op::SelfAttention { n_heads, head_dim, scale: 0.5 };
            let v = like[random.below(like.len())];
            (op, vec![x.id, y.id, v.id], x.channels, attend(x, y, v))
        }
        _ => (Op::Scale { factor: 0.5 }, vec![x.id], x.channels, unary(&|v| v * 0.5)),
    };
    let len = match op {
        Op::GatherRows => Dim::Sym(Sym::Rows),
        Op::PoolRows { size } => Dim::Part { of: Sym::Tokens, by: size },
        _ => x.len,
    };
    let id = graph.node(name, op, &inputs)?;
    Ok(Value { id, len, channels, data })
}

/// Every row over every row, one head, scale 0.5.
fn attend(q: &Value, k: &Value, v: &Value) -> Vec<f64> {
    let c = q.channels;
    let mut out = vec![0.0; q.data.len()];
    for (q, out) in q.data.chunks(c).zip(out.chunks_mut(c)) {
        let score = |k: &[f64]| 0.5 * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
        let scores: Vec<f64> = k.data.chunks(c).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        for (score, v) in scores.iter().zip(v.data.chunks(c)) {
            let weight = (score - max).exp() / sum;
            out.iter_mut().zip(v).for_each(|(o, v)| *o += weight * v);
        }
    }
    out
}
