//! A small valid program with every kind of part, for the tests of the file format.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Part,
    Program, QuantLayout, RopeSpec, SamplingDefaults, ScaleFormat, StateDecl, Sym, ValueType,
    WeightDecl, input, method, output,
};

pub const VOCAB: u64 = 24;
pub const HIDDEN: u64 = 32;

/// Its declarations and graph.
pub fn description() -> Description {
    let nested = QuantLayout {
        bits: 6,
        group: 16,
        offset: 32,
        scale: ScaleFormat::Nested { per: 2, sub: DType::I8, dtype: DType::F16 },
        affine: false,
    };
    let weights: BTreeMap<String, WeightDecl> = [
        ("embed", WeightDecl::dense([VOCAB, HIDDEN], DType::Bf16)),
        ("norm", WeightDecl::dense([HIDDEN], DType::F32)),
        ("q", WeightDecl::quant([HIDDEN, HIDDEN], QuantLayout::symmetric(4, 32, DType::F16))),
        ("k", WeightDecl::quant([HIDDEN, HIDDEN], QuantLayout::affine(5, 16, DType::Bf16))),
        ("v", WeightDecl::quant([HIDDEN, HIDDEN], nested)),
        ("head", WeightDecl::dense([VOCAB, HIDDEN], DType::F16)),
    ]
    .into_iter()
    .map(|(n, w)| (n.to_string(), w))
    .collect();
    let states =
        vec![StateDecl { name: "kv".into(), n_kv_heads: 2, head_dim: 16, window: Some(5) }];
    let mut g = GraphBuilder::new(&weights, &states);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let linear = |w: &str| Op::Linear { weight: w.into(), bias: None };
    let embed = Op::embed("embed", 2.0);
    let x = g.node("embed", embed, &[tokens]).unwrap();
    let norm =
        Op::RmsNorm { weight: Some("norm".into()), eps: 1e-6, offset: 1.0, width: HIDDEN as u32 };
    let h = g.node("norm", norm, &[x]).unwrap();
    let q = g.node("q", linear("q"), &[h]).unwrap();
    let k = g.node("k", linear("k"), &[h]).unwrap();
    let v = g.node("v", linear("v"), &[h]).unwrap();
    let rope = RopeSpec { head_dim: 16, theta: 1e4, rotated_pairs: 8, factor: 1.0 };
    let k = g.node("k_rope", Op::Rope(rope), &[k]).unwrap();
    g.node("kv_write", Op::KvWrite { state: "kv".into() }, &[k, v]).unwrap();
    let spec = AttentionSpec {
        n_heads: 2,
        n_kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        window: Some(5),
        bidirectional: false,
        own_key: true,
    };
    let attention = Op::Attention { state: "kv".into(), spec };
    let a = g.node("attention", attention, &[q]).unwrap();
    let x = g.node("residual", Op::Add, &[x, a]).unwrap();
    let x = g.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let logits = g.node("head", linear("head"), &[x]).unwrap();
    g.output(output::LOGITS, logits);
    let graph = g.finish();
    let methods = [(method::FORWARD.to_string(), Method::new(16, graph))].into();
    let metadata = Metadata {
        name: "sample".into(),
        architecture: "sample".into(),
        made_by: "test".into(),
        vocab_size: VOCAB as u32,
        max_context_len: 64,
        bos_id: Some(2),
        pad_id: Some(0),
        eos_ids: vec![1],
        suppress_ids: vec![],
        add_bos: true,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    Description { metadata, states, methods, weights }
}

/// Bytes for every part, different everywhere.
pub fn store(d: &Description) -> MemoryStore {
    let mut store = MemoryStore::new();
    for (name, decl) in &d.weights {
        for part in Part::ALL {
            let n = decl.part_bytes(part) as usize;
            if n > 0 {
                let seed = name.len() * 31 + part as usize * 7;
                // Small exponents, so that every float is finite.
                let bytes = (0..n).map(|i| ((i * 13 + seed) % 60) as u8).collect();
                store.insert(name.as_str(), part, bytes);
            }
        }
    }
    store
}

/// The whole program.
pub fn program() -> Program {
    let d = description();
    let store = store(&d);
    let mut program = Program::new(d, BTreeMap::new(), Arc::new(store)).unwrap();
    program.set_blob("tokenizer.json", br#"{"version":"1.0"}"#.as_slice());
    program.set_blob("chat_template.jinja", b"{{ messages }}".as_slice());
    program
}

/// The bytes of its file.
pub fn file() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.lap");
    lapidary_program::lap::write(&program(), &path, &mut |_, _| true).unwrap();
    std::fs::read(path).unwrap()
}
