//! Prints how fast every row attends to every row, beside a plain product of matrices.
//!
//! `cargo run --release -p lapidary-backend-cpu --example attention_speed [threads [rows]]`

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapidary_backend::{Backend, Call, DeviceId, Engine, Feed, LoadOptions, Results, Wanted};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::{
    DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program, SamplingDefaults,
    Sym, ValueType, WeightDecl,
};

/// Heads and their size: the vision towers that there are.
const HEADS: [(usize, usize); 2] = [(16, 72), (12, 64)];
const ROWS: [usize; 4] = [630, 2520, 4096, 10_080];
const PATIENCE: Duration = Duration::from_millis(1500);

fn main() {
    let number = |i| std::env::args().nth(i).and_then(|n| n.parse::<usize>().ok());
    let rows = number(2).map_or(ROWS.to_vec(), |n| vec![n]);
    for (n_heads, head_dim) in HEADS {
        let channels = n_heads * head_dim;
        let program = two_methods(n_heads, head_dim);
        let device = CpuBackend.open(&DeviceId::new("cpu", 0)).expect("this machine has a CPU");
        let options = LoadOptions { threads: number(1), ..LoadOptions::default() };
        let mut engine = device.load(&program, &options, &mut |_, _| {}).expect("there is memory");
        for n in &rows {
            let attention = time(&mut *engine, "attention", *n, channels);
            let linear = time(&mut *engine, "linear", *n, channels);
            let speed = |operations: usize, seconds: f64| operations as f64 / seconds / 1e9;
            println!(
                "{:24} {n:>6} rows, {n_heads} heads of {head_dim}: {:8.1} ms {:6.1} Gop/s; linear {:6.1} Gop/s",
                engine.describe(),
                attention * 1e3,
                speed(4 * n * n * channels, attention),
                speed(2 * n * channels * channels, linear),
            );
        }
    }
}

/// The best of some runs, in seconds.
fn time(engine: &mut dyn Engine, method: &str, n_rows: usize, channels: usize) -> f64 {
    let make = |step: usize| -> Vec<f32> {
        (0..n_rows * channels).map(|i| (i * step % 1009) as f32 / 504.5 - 1.0).collect()
    };
    let [q, k, v] = [7, 11, 13].map(make);
    let feeds = [Feed::f32("q", &q), Feed::f32("k", &k), Feed::f32("v", &v)];
    let wants = [Wanted::whole("y")];
    let call = Call { method, feeds: &feeds, wants: &wants, ..Call::default() };
    let mut results = Results::default();
    let (mut best, start) = (f64::INFINITY, Instant::now());
    while start.elapsed() < PATIENCE {
        let start = Instant::now();
        engine.run(&call, &mut results).expect("the feeds are right");
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Attention, and a square product of its queries.
fn two_methods(n_heads: usize, head_dim: usize) -> Arc<Program> {
    let channels = (n_heads * head_dim) as u64;
    let weights =
        BTreeMap::from([("w".to_string(), WeightDecl::dense([channels, channels], DType::F32))]);
    let mut store = MemoryStore::new();
    store.insert_f32("w", &vec![0.01; (channels * channels) as usize]);
    let attention =
        Op::SelfAttention { n_heads: n_heads as u32, head_dim: head_dim as u32, scale: 0.1 };
    let linear = Op::Linear { weight: "w".into(), bias: None };
    let methods = [("attention", attention, 3), ("linear", linear, 1)].map(|(name, op, n)| {
        let mut graph = GraphBuilder::new(&weights, &[]);
        let rows = || ValueType::rows(Sym::Patches, channels);
        let inputs = ["q", "k", "v"].map(|name| graph.input(name, rows()));
        let y = graph.node(name, op, &inputs[..n]).expect("the shapes fit");
        graph.output("y", y);
        (name.to_string(), Method::new(1 << 20, graph.finish()))
    });
    let metadata = Metadata {
        name: "attention".into(),
        architecture: "attention".into(),
        made_by: "attention_speed".into(),
        vocab_size: 1,
        max_context_len: 1,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let description =
        Description { metadata, states: vec![], methods: BTreeMap::from(methods), weights };
    let program = Program::new(description, BTreeMap::new(), Arc::new(store));
    Arc::new(program.expect("one op is a program"))
}
