//! Prints how fast a linear runs, for each instruction set, shape and number of tokens.
//!
//! `cargo run --release -p lapidary-backend-cpu --example linear_speed [threads [encoding]]`

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lapidary_backend::{
    Backend, Call, CallLimits, DeviceId, Engine, Feed, LoadOptions, Results, Wanted,
};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::{
    DType, Description, Encoding, GraphBuilder, MemoryStore, Metadata, Method, Op, Part, Program,
    QuantLayout, SamplingDefaults, ScaleFormat, Sym, ValueType, WeightDecl,
};

const ISA: &str = "LAPIDARY_CPU_ISA";
/// Outputs, inputs and the most rows: layers of 270M and 1B models, one of a vision tower, and an
/// output head that no cache holds and that is asked for a few rows only.
const SHAPES: [(usize, usize, usize); 7] = [
    (256, 640, 512),
    (2048, 640, 512),
    (640, 2048, 512),
    (6912, 1152, 512),
    (1152, 6912, 512),
    (4304, 1152, 4096),
    (262_144, 640, 8),
];
const TOKENS: [usize; 7] = [1, 2, 4, 8, 64, 512, 4096];
const PATIENCE: Duration = Duration::from_millis(400);

fn main() {
    let threads = std::env::args().nth(1).and_then(|n| n.parse().ok());
    if std::env::var(ISA).is_ok() {
        return measure_all(threads);
    }
    let x86 = ["avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"];
    for isa in ["scalar"].into_iter().chain(x86).chain(["neon", "dotprod", "i8mm"]) {
        let exe = std::env::current_exe().expect("an example has a file");
        let done = Command::new(exe).args(std::env::args().skip(1)).env(ISA, isa).status();
        if !done.expect("the example's own file can be run").success() {
            println!("{isa}: not on this machine");
        }
    }
}

fn measure_all(threads: Option<usize>) {
    let only = std::env::args().nth(2);
    for (name, encoding) in encodings() {
        if only.as_deref().is_some_and(|only| only != name) {
            continue;
        }
        for (n, k, most) in SHAPES {
            let decl = WeightDecl { shape: vec![n as u64, k as u64], encoding };
            let program = one_linear(k, &decl);
            let options = LoadOptions {
                max_context: 1,
                n_sequences: 1,
                limits: CallLimits { chunk: most as u32, tokens: most as u32, block: 1 },
                threads,
                ..LoadOptions::default()
            };
            let device = CpuBackend.open(&DeviceId::new("cpu", 0)).expect("there is a CPU");
            let mut engine =
                device.load(&program, &options, &mut |_, _| {}).expect("there is memory");
            for t in TOKENS.into_iter().filter(|t| *t <= most) {
                let seconds = time(&mut *engine, t, k);
                let flops = 2.0 * (t * n * k) as f64 / seconds / 1e9;
                let bytes = decl.size_bytes() as f64 / seconds / 1e9;
                println!(
                    "{:28} {name:>5} {n:>6} × {k:<4} {t:>4} tokens {:9.1} µs {flops:7.1} Gop/s {bytes:6.1} GB/s",
                    engine.describe(),
                    seconds * 1e6,
                );
            }
        }
    }
}

/// Dense weights, and quantised ones as GGUF has them.
fn encodings() -> Vec<(&'static str, Encoding)> {
    let nested = |sub, per| ScaleFormat::Nested { per, sub, dtype: DType::F16 };
    let quant = |bits, group, offset, scale, affine| {
        Encoding::Quant(QuantLayout { bits, group, offset, scale, affine })
    };
    vec![
        ("q4_0", Encoding::Quant(QuantLayout::symmetric(4, 32, DType::F16))),
        ("q8_0", Encoding::Quant(QuantLayout::symmetric(8, 32, DType::F16))),
        ("q4_1", Encoding::Quant(QuantLayout::affine(4, 32, DType::F16))),
        ("q5_k", quant(5, 32, 0, nested(DType::U8, 4), true)),
        ("q6_k", quant(6, 16, 32, nested(DType::I8, 8), false)),
        ("bf16", Encoding::Dense(DType::Bf16)),
        ("f32", Encoding::Dense(DType::F32)),
    ]
}

/// The best of many runs, in seconds.
fn time(engine: &mut dyn Engine, n_tokens: usize, k: usize) -> f64 {
    let x: Vec<f32> = (0..n_tokens * k).map(|i| (i % 7) as f32 - 3.0).collect();
    let (feeds, wants) = ([Feed::f32("x", &x)], [Wanted::whole("y")]);
    let call = Call { method: "op", feeds: &feeds, wants: &wants, ..Call::default() };
    let mut results = Results::default();
    let (mut best, start) = (f64::INFINITY, Instant::now());
    while start.elapsed() < PATIENCE {
        let start = Instant::now();
        engine.run(&call, &mut results).expect("the feed is right");
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn one_linear(k: usize, decl: &WeightDecl) -> Arc<Program> {
    let mut store = MemoryStore::new();
    for part in Part::ALL.into_iter().filter(|part| decl.part_bytes(*part) > 0) {
        let bytes = (0..decl.part_bytes(part)).map(|i| (i % 60) as u8).collect();
        store.insert("w", part, bytes);
    }
    let weights = BTreeMap::from([("w".to_string(), decl.clone())]);
    let mut graph = GraphBuilder::new(&weights, &[]);
    let x = graph.input("x", ValueType::rows(Sym::Tokens, k as u64));
    let y = graph
        .node("linear", Op::Linear { weight: "w".into(), bias: None }, &[x])
        .expect("the shapes fit");
    graph.output("y", y);
    let methods = BTreeMap::from([("op".to_string(), Method::new(1 << 20, graph.finish()))]);
    let metadata = Metadata {
        name: "linear".into(),
        architecture: "linear".into(),
        made_by: "linear_speed".into(),
        vocab_size: 1,
        max_context_len: 1 << 20,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let description = Description { metadata, states: vec![], methods, weights };
    let program = Program::new(description, BTreeMap::new(), Arc::new(store));
    Arc::new(program.expect("one linear is a program"))
}
