//! A small program with a method for text, one for images and one for audio.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_program::{
    Activation, AttentionSpec, AxialRopeSpec, DType, Description, Graph, GraphBuilder,
    LocalAttentionSpec, MemoryStore, Metadata, Method, Op, Program, Result, SamplingDefaults,
    StateDecl, Sym, ValueId, ValueType, WeightDecl, input,
};

pub const HIDDEN: u64 = 40;
pub const HEADS: u32 = 2;
pub const HEAD_DIM: u32 = 20;
pub const PATCH: u64 = 12;
pub const MELS: u64 = 8;
/// Patches of one soft token.
pub const POOL: u32 = 4;
pub const VOCAB: u64 = 64;

pub fn program() -> Arc<Program> {
    let mut store = MemoryStore::new();
    let mut weights = BTreeMap::new();
    let shapes: [(&str, &[u64]); 11] = [
        ("embed", &[VOCAB, HIDDEN]),
        ("patch", &[HIDDEN, PATCH]),
        ("patch.bias", &[HIDDEN]),
        ("norm", &[HIDDEN]),
        ("k", &[HIDDEN, HIDDEN]),
        ("conv", &[10, 1, 3, 3]),
        ("scale", &[HEAD_DIM as u64]),
        ("relative", &[HIDDEN, 8]),
        ("taps", &[HIDDEN, 5]),
        ("low", &[1]),
        ("high", &[1]),
    ];
    for (name, shape) in shapes {
        let n: u64 = shape.iter().product();
        let wave = |i: u64| (i as f32 * 0.73 + name.len() as f32).sin() / (HIDDEN as f32).sqrt();
        let values: Vec<f32> = match name {
            "low" => vec![-3.0],
            "high" => vec![3.0],
            _ => (0..n).map(wave).collect(),
        };
        store.insert_f32(name, &values);
        weights.insert(name.to_string(), WeightDecl::dense(shape.to_vec(), DType::F32));
    }
    let states =
        vec![StateDecl { name: "kv".into(), n_kv_heads: HEADS, head_dim: HEAD_DIM, window: None }];
    let method = |build: fn(&mut GraphBuilder<'_>) -> Result<ValueId>| -> Graph {
        let mut graph = GraphBuilder::new(&weights, &states);
        let y = build(&mut graph).unwrap();
        graph.output("y", y);
        graph.finish()
    };
    let methods = BTreeMap::from([
        ("say".to_string(), Method::new(64, method(say))),
        ("look".to_string(), Method::new(4096, method(look))),
        ("listen".to_string(), Method::new(4096, method(listen))),
    ]);
    let metadata = Metadata {
        name: "towers".into(),
        architecture: "towers".into(),
        made_by: "a test".into(),
        vocab_size: VOCAB as u32,
        max_context_len: 4096,
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

fn linear(weight: &str) -> Op {
    Op::Linear { weight: weight.into(), bias: None }
}

fn say(graph: &mut GraphBuilder<'_>) -> Result<ValueId> {
    let tokens = graph.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let x = graph.node("embed", Op::embed("embed", 1.0), &[tokens])?;
    graph.node("write", Op::KvWrite { state: "kv".into() }, &[x, x])?;
    let spec = AttentionSpec {
        n_heads: HEADS,
        n_kv_heads: HEADS,
        head_dim: HEAD_DIM,
        scale: 1.0,
        window: None,
        bidirectional: false,
        own_key: true,
    };
    let op = Op::Attention { state: "kv".into(), spec };
    let x = graph.node("attention", op, &[x])?;
    graph.node("head", linear("embed"), &[x])
}

/// Patches, a norm, self-attention with turned keys and queries, and pooling.
fn look(graph: &mut GraphBuilder<'_>) -> Result<ValueId> {
    let patches = graph.input(input::PATCHES, ValueType::rows(Sym::Patches, PATCH));
    let [columns, rows] = [input::PATCH_X, input::PATCH_Y]
        .map(|name| graph.input(name, ValueType::indices(Sym::Patches)));
    let op = Op::Linear { weight: "patch".into(), bias: Some("patch.bias".into()) };
    let x = graph.node("patch", op, &[patches])?;
    let op = Op::LayerNorm {
        weight: "norm".into(),
        bias: Some("patch.bias".into()),
        eps: 1e-6,
        width: HIDDEN as u32,
    };
    let h = graph.node("norm", op, &[x])?;
    let k = graph.node("k", linear("k"), &[h])?;
    let turn = || Op::AxialRope(AxialRopeSpec { head_dim: HEAD_DIM, theta: 100.0 });
    let k = graph.node("turned k", turn(), &[k, columns, rows])?;
    let q = graph.node("turned q", turn(), &[h, columns, rows])?;
    let op = Op::SelfAttention { n_heads: HEADS, head_dim: HEAD_DIM, scale: 2.0 };
    let h = graph.node("attention", op, &[q, k, x])?;
    let x = graph.node("sum", Op::Add, &[x, h])?;
    let op = Op::Clamp { low: "low".into(), high: "high".into() };
    let x = graph.node("clamp", op, &[x])?;
    graph.node("pool", Op::PoolRows { size: POOL }, &[x])
}

/// A convolution, local attention, and a convolution over time.
fn listen(graph: &mut GraphBuilder<'_>) -> Result<ValueId> {
    let x = graph.input("frames", ValueType::rows(Sym::Frames, MELS));
    let op = Op::Conv2d { weight: "conv".into(), width: MELS as u32 };
    let x = graph.node("conv", op, &[x])?;
    let x = graph.node("relu", Op::Activate { function: Activation::Relu }, &[x])?;
    let k = graph.node("k", linear("k"), &[x])?;
    let spec = LocalAttentionSpec {
        n_heads: HEADS,
        head_dim: HEAD_DIM,
        window: 12,
        cap: 50.0,
        q_scale: 1.0,
        k_scale: 1.0,
        per_dim_scale: "scale".into(),
        softplus: true,
        relative: "relative".into(),
    };
    let h = graph.node("attention", Op::LocalAttention(spec), &[x, k, k])?;
    let h = graph.node("taps", Op::CausalConv1d { weight: "taps".into() }, &[h])?;
    graph.node("gate", Op::SigmoidGate, &[h, x])
}
