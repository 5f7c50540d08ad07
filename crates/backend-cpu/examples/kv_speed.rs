//! Prints how long writing keys and values and attending to them takes, for each way to store them.
//!
//! `cargo run --release -p lapidary-backend-cpu --example kv_speed [threads [stride]]`
//!
//! Pages stand `stride` apart, as those of a sequence do after some time; 1 has them in order.
//! The ways take turns, so that what else the machine does hits all of them alike. Between two
//! single tokens a large array goes through the processor's caches, as the weights of a model do.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use lapidary_backend::{
    Backend, Call, CallLimits, DeviceId, Engine, Feed, KvType, LoadOptions, PageId, PageTable,
    Results, Span, Wanted, pages_for,
};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::{
    AttentionSpec, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program,
    SamplingDefaults, StateDecl, Sym, ValueType,
};

/// Heads, KV heads and their size: layers that see everything, of Gemma 3 1B and Gemma 4 E2B.
const SHAPES: [(u32, u32, u32); 2] = [(4, 1, 256), (8, 1, 512)];
/// Tokens of one call and those before them, and how often.
const CALLS: [(usize, usize, usize); 5] =
    [(1, 2 << 10, 60), (1, 8 << 10, 40), (1, 16 << 10, 30), (512, 0, 9), (512, 4 << 10, 5)];
const CHUNK: usize = 512;
const CONTEXT: usize = (16 << 10) + CHUNK;
/// Bytes that no processor's cache holds.
const WEIGHTS_LEN: usize = 96 << 20;

fn main() {
    let number = |i| std::env::args().nth(i).and_then(|n| n.parse::<usize>().ok());
    let (threads, stride) = (number(1), number(2).unwrap_or(37));
    let weights = vec![1u8; WEIGHTS_LEN];
    for (n_heads, n_kv_heads, head_dim) in SHAPES {
        let spec = AttentionSpec {
            n_heads,
            n_kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            window: None,
            bidirectional: false,
            own_key: true,
        };
        let mut engines = KvType::ALL.map(|kv| Filled::new(spec, kv, (threads, stride)));
        println!("{n_heads}/{n_kv_heads} heads of {head_dim}, {}", engines[0].engine.describe());
        for (n_tokens, depth, times) in CALLS {
            let mut best = [f64::INFINITY; 3];
            for _ in 0..times {
                for (engine, best) in engines.iter_mut().zip(&mut best) {
                    if n_tokens == 1 {
                        black_box(weights.iter().step_by(64).map(|x| u64::from(*x)).sum::<u64>());
                    }
                    *best = best.min(engine.call(depth, n_tokens));
                }
            }
            print!("{n_tokens:>4} tokens at {depth:>6}:");
            for (kv, us) in KvType::ALL.iter().zip(best) {
                print!("  {:>4} {us:7.0} µs ×{:.2}", kv.name(), us / best[0]);
            }
            println!();
        }
    }
}

/// An engine whose cache is full.
struct Filled {
    engine: Box<dyn Engine>,
    spec: AttentionSpec,
    pages: Vec<PageId>,
    results: Results,
}

impl Filled {
    fn new(spec: AttentionSpec, kv: KvType, (threads, stride): (Option<usize>, usize)) -> Self {
        let options = LoadOptions {
            max_context: CONTEXT as u32,
            n_sequences: 1,
            limits: CallLimits { chunk: CHUNK as u32, tokens: CHUNK as u32, block: 1 },
            pages: vec![pages_for(CONTEXT) as u32],
            threads,
            kv: Some(kv),
            ..LoadOptions::default()
        };
        let device = CpuBackend.open(&DeviceId::new("cpu", 0)).expect("this machine has a CPU");
        let engine = device.load(&one_attention(spec), &options, &mut |_, _| {});
        let n = pages_for(CONTEXT);
        let pages = (0..n).map(|i| PageId((i * stride % n) as u32)).collect();
        let engine = engine.expect("there is memory");
        let mut filled = Filled { engine, spec, pages, results: Results::default() };
        for start in (0..CONTEXT).step_by(CHUNK) {
            filled.call(start, CHUNK);
        }
        filled
    }

    /// Writes and asks for so many tokens after a depth; returns the microseconds.
    fn call(&mut self, depth: usize, n_tokens: usize) -> f64 {
        let numbers = |heads: u32| -> Vec<f32> {
            let n = n_tokens * (heads * self.spec.head_dim) as usize;
            (0..n).map(|i| ((i * 37 + depth) % 101) as f32 / 50.0 - 1.0).collect()
        };
        let (q, kv) = (numbers(self.spec.n_heads), numbers(self.spec.n_kv_heads));
        let tables = [PageTable { first: 0, pages: &self.pages }];
        let call = Call {
            method: "op",
            feeds: &[Feed::f32("q", &q), Feed::f32("k", &kv), Feed::f32("v", &kv)],
            spans: &[Span { start: depth as u32, len: n_tokens as u32, tables: &tables }],
            wants: &[Wanted::whole("y")],
            ..Call::default()
        };
        let start = Instant::now();
        self.engine.run(&call, &mut self.results).expect("the call is right");
        start.elapsed().as_secs_f64() * 1e6
    }
}

fn one_attention(spec: AttentionSpec) -> Arc<Program> {
    let AttentionSpec { n_kv_heads, head_dim, .. } = spec;
    let state = StateDecl { name: "kv".into(), n_kv_heads, head_dim, window: None };
    let (weights, states) = (BTreeMap::new(), vec![state]);
    let mut graph = GraphBuilder::new(&weights, &states);
    let [q, k, v] = [("q", spec.n_heads), ("k", n_kv_heads), ("v", n_kv_heads)]
        .map(|(name, n)| graph.input(name, ValueType::rows(Sym::Tokens, u64::from(n * head_dim))));
    let write = Op::KvWrite { state: "kv".into() };
    graph.node("write", write, &[k, v]).expect("the shapes fit");
    let attention = Op::Attention { state: "kv".into(), spec };
    let y = graph.node("attention", attention, &[q]).expect("the shapes fit");
    graph.output("y", y);
    let methods = BTreeMap::from([("op".to_string(), Method::new(1 << 20, graph.finish()))]);
    let metadata = Metadata {
        name: "attention".into(),
        architecture: "attention".into(),
        made_by: "attention_speed".into(),
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
    let description = Description { metadata, states, methods, weights };
    let program = Program::new(description, BTreeMap::new(), Arc::new(MemoryStore::new()));
    Arc::new(program.expect("one attention is a program"))
}
