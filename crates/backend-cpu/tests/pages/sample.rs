//! A small program with caches of two windows, and a driver that keeps page tables for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Backend, Call, Device, DeviceId, Engine, Feed, KvType, LoadOptions, PAGE, PageId, PageTable,
    Result, Results, Span, Wanted, Wishes,
};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program,
    RopeSpec, SamplingDefaults, StateDecl, Sym, ValueId, ValueType, WeightDecl, input, output,
};

pub const VOCAB: u64 = 61;
pub const HIDDEN: u64 = 48;
pub const CHUNK: u32 = 400;
pub const CONTEXT: u32 = 1000;
pub const WINDOW: u32 = 100;
const HEAD_DIM: u32 = 24;

fn linear(weight: &str) -> Op {
    Op::Linear { weight: weight.into(), bias: None }
}

/// A layer that sees everything, one that sees a window, and a head; and a method that goes on from
/// hidden rows.
pub fn program() -> Arc<Program> {
    let mut store = MemoryStore::new();
    let mut weights = BTreeMap::new();
    for (name, rows) in [("embed", VOCAB), ("q", HIDDEN), ("k", HIDDEN), ("v", HIDDEN)] {
        let wave = |i: u64| (i as f32 * 0.37 + name.len() as f32).sin() / 4.0;
        store.insert_f32(name, &(0..rows * HIDDEN).map(wave).collect::<Vec<_>>());
        weights.insert(name.to_string(), WeightDecl::dense([rows, HIDDEN], DType::F32));
    }
    let state = |name: &str, window| StateDecl {
        name: name.to_string(),
        n_kv_heads: 2,
        head_dim: HEAD_DIM,
        window,
    };
    let states = vec![state("near", Some(WINDOW)), state("all", None)];
    let mut graph = GraphBuilder::new(&weights, &states);
    let tokens = graph.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = graph.input(input::ROWS, ValueType::indices(Sym::Rows));
    let mut x = graph.node("embed", Op::embed("embed", 1.0), &[tokens]).unwrap();
    for state in &states {
        x = layer(&mut graph, state, x);
    }
    let hidden = graph.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let logits = graph.node("head", linear("embed"), &[hidden]).unwrap();
    graph.output(output::LOGITS, logits);
    graph.output(output::HIDDEN, hidden);
    let forward = Method::new(CHUNK, graph.finish());
    let mut graph = GraphBuilder::new(&weights, &states);
    let x = graph.input("x", ValueType::rows(Sym::Tokens, HIDDEN));
    let y = graph.node("again", linear("q"), &[x]).unwrap();
    graph.output("y", y);
    let again = Method::new(CHUNK, graph.finish());
    let methods = BTreeMap::from([("forward".to_string(), forward), ("again".to_string(), again)]);
    let metadata = Metadata {
        name: "pages".into(),
        architecture: "pages".into(),
        made_by: "a test".into(),
        vocab_size: VOCAB as u32,
        max_context_len: 4096,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        answer: None,
        media: Default::default(),
    };
    let description = Description { metadata, states, methods, weights };
    Arc::new(Program::new(description, BTreeMap::new(), Arc::new(store)).unwrap())
}

fn layer(graph: &mut GraphBuilder<'_>, state: &StateDecl, x: ValueId) -> ValueId {
    let norm = Op::RmsNorm { weight: None, eps: 1e-6, offset: 0.0, width: HIDDEN as u32 };
    let h = graph.node(format!("{} norm", state.name), norm, &[x]).unwrap();
    let rope =
        Op::Rope(RopeSpec { head_dim: HEAD_DIM, theta: 1e4, rotated_pairs: 12, factor: 1.0 });
    let [q, k, v] = ["q", "k", "v"].map(|weight| {
        let made = graph.node(format!("{} {weight}", state.name), linear(weight), &[h]).unwrap();
        if weight == "v" {
            return made;
        }
        graph.node(format!("{} turned {weight}", state.name), rope.clone(), &[made]).unwrap()
    });
    let write = Op::KvWrite { state: state.name.clone() };
    graph.node(format!("{} write", state.name), write, &[k, v]).unwrap();
    let spec = AttentionSpec {
        n_heads: 2,
        n_kv_heads: 2,
        head_dim: HEAD_DIM,
        scale: 0.2,
        window: state.window,
        bidirectional: false,
        own_key: true,
    };
    let attention = Op::Attention { state: state.name.clone(), spec };
    let h = graph.node(format!("{} attention", state.name), attention, &[q]).unwrap();
    graph.node(format!("{} sum", state.name), Op::Add, &[x, h]).unwrap()
}

pub fn device() -> Box<dyn Device> {
    CpuBackend.open(&DeviceId::new("cpu", 0)).unwrap()
}

pub fn load(kv: KvType) -> Box<dyn Engine> {
    let program = program();
    let (max_context, n_sequences) = (CONTEXT, 3);
    let wishes = Wishes { max_context, n_sequences, chunk: Some(CHUNK), block: None };
    let options = LoadOptions {
        max_context,
        n_sequences,
        limits: device().limits(&program, &wishes),
        pages: vec![30, 30],
        threads: Some(2),
        kv: Some(kv),
        ..LoadOptions::default()
    };
    device().load(&program, &options, &mut |_, _| {}).unwrap()
}

/// The pages of one sequence: those of the group that keeps everything, and of the other.
#[derive(Clone, Debug)]
pub struct Sequence {
    pub all: Vec<PageId>,
    pub near: Vec<PageId>,
    /// Pages of the window that were given up.
    pub near_first: u32,
    /// Tokens that are in.
    pub len: u32,
}

impl Sequence {
    /// A sequence in these pages of both groups.
    pub fn new(pages: impl IntoIterator<Item = u32>) -> Self {
        let all: Vec<PageId> = pages.into_iter().map(PageId).collect();
        Sequence { near: all.clone(), all, near_first: 0, len: 0 }
    }

    /// Gives up the pages that no later token sees.
    pub fn slide(&mut self) {
        let first = (self.len + 1).saturating_sub(WINDOW) / PAGE as u32;
        self.near.drain(..(first - self.near_first) as usize);
        self.near_first = first;
    }

    pub fn tables(&self) -> [PageTable<'_>; 2] {
        [
            PageTable { first: 0, pages: &self.all },
            PageTable { first: self.near_first, pages: &self.near },
        ]
    }
}

/// Feeds tokens of several sequences at once; the logits of all of them.
pub fn try_feed(
    engine: &mut dyn Engine,
    fed: &mut [(&mut Sequence, &[i32])],
) -> Result<Vec<Vec<f32>>> {
    let tokens: Vec<i32> = fed.iter().flat_map(|(_, tokens)| *tokens).copied().collect();
    let rows: Vec<i32> = (0..tokens.len() as i32).collect();
    let tables: Vec<_> = fed.iter().map(|(sequence, _)| sequence.tables()).collect();
    let spans: Vec<Span<'_>> = fed
        .iter()
        .zip(&tables)
        .map(|((sequence, tokens), tables)| Span {
            start: sequence.len,
            len: tokens.len() as u32,
            tables,
        })
        .collect();
    let call = Call {
        method: "forward",
        feeds: &[Feed::i32(input::TOKENS, &tokens), Feed::i32(input::ROWS, &rows)],
        spans: &spans,
        wants: &[Wanted::whole(output::LOGITS)],
        ..Call::default()
    };
    let mut results = Results::default();
    engine.run(&call, &mut results)?;
    let mut logits = results.get(output::LOGITS).unwrap().data.chunks_exact(VOCAB as usize);
    let own = fed.iter_mut().map(|(sequence, tokens)| {
        sequence.len += tokens.len() as u32;
        logits.by_ref().take(tokens.len()).flatten().copied().collect()
    });
    Ok(own.collect())
}

/// Feeds tokens of one sequence.
pub fn feed(engine: &mut dyn Engine, sequence: &mut Sequence, tokens: &[i32]) -> Vec<f32> {
    try_feed(engine, &mut [(sequence, tokens)]).unwrap().remove(0)
}

/// Tokens that look random.
pub fn tokens(n: usize, seed: usize) -> Vec<i32> {
    (0..n).map(|i| ((i * i * 7 + i * 3 + seed * 17) % VOCAB as usize) as i32).collect()
}
