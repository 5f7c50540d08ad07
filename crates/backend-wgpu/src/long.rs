//! Tests of long prompts: the work of a submission is bounded, and chunks do not change results.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use lapidary_backend::{
    Call, CallLimits, Engine, Feed, LoadOptions, PageId, PageTable, Results, Span, Wanted,
};
use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program,
    SamplingDefaults, StateDecl, Sym, ValueType, WeightDecl, input,
};

use crate::adapter::{Api, Switches};
use crate::compile::Tables;
use crate::device::Gpu;
use crate::engine::WgpuEngine;

const VOCAB: usize = 31;
const CHANNELS: usize = 16;
const PROMPT: usize = 16 << 10;

/// One layer that sees everything and one that sees a window, between an embedding and a head.
fn program() -> Arc<Program> {
    let shapes = [("embed", VOCAB), ("q", CHANNELS), ("k", CHANNELS), ("v", CHANNELS)];
    let decl = |n: usize| WeightDecl::dense([n as u64, CHANNELS as u64], DType::F32);
    let weights: BTreeMap<String, WeightDecl> =
        shapes.iter().map(|(name, n)| ((*name).to_string(), decl(*n))).collect();
    let mut store = MemoryStore::new();
    for (seed, (name, n)) in shapes.iter().enumerate() {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5;
        let numbers: Vec<f32> = (0..n * CHANNELS).map(number).collect();
        store.insert_f32(*name, &numbers);
    }
    let state = |name: &str, window| StateDecl {
        name: name.into(),
        n_kv_heads: 1,
        head_dim: CHANNELS as u32,
        window,
    };
    let states = vec![state("all", None), state("near", Some(100))];
    let mut graph = GraphBuilder::new(&weights, &states);
    let indices = || ValueType::indices(Sym::Tokens);
    let tokens = graph.input(input::TOKENS, indices());
    let rows = graph.input(input::ROWS, ValueType::indices(Sym::Rows));
    let embed =
        Op::Embed { weight: "embed".into(), scale: 4.0, start: 0, stride: 1, soft_id: None };
    let mut x = graph.node("x", embed, &[tokens]).unwrap();
    for state in &states {
        let mut linear = |weight: &str, x| {
            let op = Op::Linear { weight: weight.into(), bias: None };
            graph.node(format!("{weight} {}", state.name), op, &[x]).unwrap()
        };
        let [q, k, v] = ["q", "k", "v"].map(|weight| linear(weight, x));
        let name = state.name.as_str();
        let write = Op::KvWrite { state: name.into() };
        graph.node(format!("kv {name}"), write, &[k, v]).unwrap();
        let spec = AttentionSpec {
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: CHANNELS as u32,
            scale: 1.0,
            window: state.window,
            bidirectional: false,
            own_key: true,
        };
        let attention = Op::Attention { state: name.into(), spec };
        let seen = graph.node(name, attention, &[q]).unwrap();
        x = graph.node(format!("sum {name}"), Op::Add, &[x, seen]).unwrap();
    }
    let x = graph.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let head = Op::Linear { weight: "embed".into(), bias: None };
    let logits = graph.node("head", head, &[x]).unwrap();
    graph.output("logits", logits);
    let methods = [("forward".to_string(), Method::new(1 << 12, graph.finish()))].into();
    let metadata = Metadata {
        name: "long".into(),
        architecture: "none".into(),
        made_by: "a test".into(),
        vocab_size: VOCAB as u32,
        max_context_len: 2 * PROMPT as u32,
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
    Arc::new(Program::new(description, BTreeMap::new(), Arc::new(store)).unwrap())
}

/// The logits after a long prompt that is fed in chunks.
fn last_logits(engine: &mut WgpuEngine, chunk: usize) -> Vec<f32> {
    let tokens: Vec<i32> = (0..PROMPT).map(|i| ((i * i + 3 * i) % VOCAB) as i32).collect();
    let pages: Vec<PageId> = (0..PROMPT.div_ceil(128) as u32).map(PageId).collect();
    // The window's pages are taken in turn: there are no more than one call needs.
    let near = engine.options().pages[1];
    let turns: Vec<PageId> = pages.iter().map(|page| PageId(page.0 % near)).collect();
    let tables = [&pages, &turns].map(|pages| PageTable { first: 0, pages });
    let mut results = Results::default();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let rows = if (i + 1) * chunk >= PROMPT { vec![part.len() as i32 - 1] } else { vec![] };
        let call = Call {
            method: "forward",
            feeds: &[Feed::i32(input::TOKENS, part), Feed::i32(input::ROWS, &rows)],
            spans: &[Span { start: (i * chunk) as u32, len: part.len() as u32, tables: &tables }],
            wants: &[Wanted::whole("logits")],
            ..Call::default()
        };
        engine.run(&call, &mut results).unwrap();
    }
    results.get("logits").unwrap().data.clone()
}

#[test]
fn long_prompts_are_cut_into_submissions_of_bounded_work() {
    // Other limits than other tests have, and so a device of its own.
    let switches = Switches { shard: Some(1 << 20), ..Switches::ALL };
    let adapters = match Api::Vulkan.adapters(Some(switches)) {
        Ok(adapters) => adapters,
        Err(e) => {
            _ = writeln!(std::io::stderr(), "SKIPPED: {e}");
            return;
        }
    };
    let gpu = Gpu::open(Api::Vulkan, &adapters[0], None).unwrap();
    let mut results = Vec::new();
    for chunk in [2048, 500] {
        let program = program();
        let limits = CallLimits { chunk: chunk as u32, tokens: chunk as u32, block: 1 };
        let options = LoadOptions {
            max_context: PROMPT as u32,
            n_sequences: 1,
            limits,
            pages: limits.pages(&program, PROMPT as u32, 1),
            ..LoadOptions::default()
        };
        let loaded = WgpuEngine::new(program, options, gpu.clone(), Tables::Host, &mut |_, _| {});
        let mut engine = loaded.unwrap();
        // As if the device were slow, so that calls are cut; it then learns how fast it is.
        gpu.speed.set(2e7);
        gpu.speed.noted.lock().unwrap().clear();
        results.push(last_logits(&mut engine, chunk));
        let noted = gpu.speed.noted.lock().unwrap();
        assert!(noted.len() > PROMPT.div_ceil(chunk), "{} submissions", noted.len());
        for (planned, budget) in noted.iter() {
            assert!(planned.work <= *budget || planned.kernels == 1, "{planned:?} of {budget}");
        }
        assert!(noted.iter().any(|(planned, _)| planned.kernels > 1));
    }
    let difference = results[0].iter().zip(&results[1]).map(|(a, b)| (a - b).abs());
    let difference = difference.fold(0.0, f32::max);
    assert!(results[0].iter().all(|x| x.is_finite()) && difference < 1e-3, "{difference}");
}
