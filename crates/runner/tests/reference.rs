//! The runner over the reference, on a small random program: numbers as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{Backend, DeviceId, LoadOptions, Wishes};
use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program,
    RopeSpec, SamplingDefaults, StateDecl, Sym, ValueType, WeightDecl, input, method, output,
};
use lapidary_reference::ReferenceBackend;
use lapidary_runner::{CancelToken, Event, Request, Rows, Runner, SamplingParams};
use lapidary_text::Prompt;

const VOCAB: u64 = 64;
const WIDTH: u64 = 16;

/// Two layers of attention, one with a window of 40, over a table that is also the head.
fn program() -> Arc<Program> {
    let names = ["q.0", "k.0", "v.0", "q.1", "k.1", "v.1"];
    let mut weights: BTreeMap<String, WeightDecl> = names
        .iter()
        .map(|name| (name.to_string(), WeightDecl::dense([WIDTH, WIDTH], DType::F32)))
        .collect();
    weights.insert("table".into(), WeightDecl::dense([VOCAB, WIDTH], DType::F32));
    let mut store = MemoryStore::new();
    let mut seed = 1u64;
    for (name, decl) in &weights {
        let numbers: Vec<f32> = (0..decl.n_elements())
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 40) as f32 / (1u32 << 23) as f32 - 1.0
            })
            .collect();
        store.insert_f32(name.as_str(), &numbers);
    }
    let windows = [None, Some(40)];
    let states: Vec<StateDecl> = windows
        .iter()
        .enumerate()
        .map(|(i, window)| StateDecl {
            name: format!("kv.{i}"),
            n_kv_heads: 2,
            head_dim: 8,
            window: *window,
        })
        .collect();
    let mut g = GraphBuilder::new(&weights, &states);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let mut x = g.node("embed", Op::embed("table", 1.0), &[tokens]).unwrap();
    for (i, state) in states.iter().enumerate() {
        let linear = |name: &str| Op::Linear { weight: format!("{name}.{i}"), bias: None };
        let norm = Op::RmsNorm { weight: None, eps: 1e-6, offset: 0.0, width: WIDTH as u32 };
        let h = g.node(format!("norm.{i}"), norm, &[x]).unwrap();
        let [q, k, v] =
            ["q", "k", "v"].map(|name| g.node(format!("{name}.{i}"), linear(name), &[h]).unwrap());
        let rope = RopeSpec { head_dim: 8, theta: 1e4, rotated_pairs: 4, factor: 1.0 };
        let q = g.node(format!("q_rope.{i}"), Op::Rope(rope), &[q]).unwrap();
        let k = g.node(format!("k_rope.{i}"), Op::Rope(rope), &[k]).unwrap();
        let write = Op::KvWrite { state: state.name.clone() };
        g.node(format!("write.{i}"), write, &[k, v]).unwrap();
        let spec = AttentionSpec {
            n_heads: 2,
            n_kv_heads: 2,
            head_dim: 8,
            scale: 0.35,
            window: state.window,
            bidirectional: false,
            own_key: true,
        };
        let attend = Op::Attention { state: state.name.clone(), spec };
        let a = g.node(format!("attend.{i}"), attend, &[q]).unwrap();
        x = g.node(format!("add.{i}"), Op::Add, &[x, a]).unwrap();
    }
    let x = g.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let head = Op::Linear { weight: "table".into(), bias: None };
    let logits = g.node("head", head, &[x]).unwrap();
    g.output(output::LOGITS, logits);
    let methods = [(method::FORWARD.to_string(), Method::new(64, g.finish()))].into();
    let metadata = Metadata {
        name: "random".into(),
        architecture: "random".into(),
        made_by: "tests".into(),
        vocab_size: VOCAB as u32,
        max_context_len: 600,
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

fn runner(program: &Arc<Program>, n_sequences: u32, n_pages: Option<u32>) -> Runner {
    let device = ReferenceBackend.open(&DeviceId::new("reference", 0)).unwrap();
    let wishes = Wishes { max_context: 600, n_sequences, ..Wishes::default() };
    let limits = device.limits(program, &wishes);
    let mut pages = limits.pages(program, 600, n_sequences);
    pages.iter_mut().for_each(|n| *n = n_pages.unwrap_or(*n));
    let options = LoadOptions {
        max_context: 600,
        n_sequences,
        limits,
        pages,
        threads: Some(1),
        ..LoadOptions::default()
    };
    Runner::new(device.load(program, &options, &mut |_, _| {}).unwrap()).unwrap()
}

fn text(n: usize, which: u32) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 31 + i / 7 + which * 5) % VOCAB as u32).collect()
}

fn sampled(prompt: Vec<u32>, seed: u64) -> Request {
    let params = SamplingParams { seed: Some(seed), top_k: 30, ..SamplingParams::default() };
    Request { max_new: 25, ..Request::new(prompt, params) }
}

fn answer(runner: &mut Runner, request: Request) -> (Vec<u32>, usize) {
    let mut tokens = vec![];
    let finish = runner.generate(request, &CancelToken::new(), |event| {
        if let Event::Token { id, .. } = event {
            tokens.push(id);
        }
    });
    (tokens, finish.unwrap().stats.reused_tokens)
}

fn fresh(program: &Arc<Program>, request: &Request) -> Vec<u32> {
    answer(&mut runner(program, 1, None), request.clone()).0
}

#[test]
fn many_in_few_pages_are_as_alone() {
    let program = program();
    let mut runner = runner(&program, 6, Some(6));
    let cancel = CancelToken::new();
    let requests: Vec<Request> =
        (0..12).map(|i| sampled(text(100 + 13 * i as usize, i % 3), u64::from(i))).collect();
    let names: Vec<_> =
        requests.iter().map(|r| runner.submit(r.clone(), &cancel).unwrap()).collect();
    let mut tokens = vec![vec![]; requests.len()];
    while runner.step(&mut |name, event| match event {
        Event::Token { id, .. } => tokens[names.iter().position(|n| *n == name).unwrap()].push(id),
        Event::Failed(e) => panic!("{e}"),
        _ => {}
    }) {}
    for (request, tokens) in requests.iter().zip(tokens) {
        assert_eq!(tokens, fresh(&program, request));
    }
    assert!(runner.n_preempted() > 0);
}

#[test]
fn forks_and_turns_are_as_fresh() {
    let program = program();
    let mut runner = runner(&program, 1, Some(16));
    let trunk = text(300, 0);
    answer(&mut runner, sampled(trunk.clone(), 1));
    for at in [1, 100, 127, 128, 129, 200, 299] {
        let fork: Vec<u32> = trunk[..at].iter().copied().chain([63, 62]).collect();
        let request = sampled(fork, 7);
        let (tokens, reused) = answer(&mut runner, request.clone());
        assert_eq!(tokens, fresh(&program, &request), "at {at}");
        assert_eq!(reused, at);
    }
}

#[test]
fn saved_and_restored_is_as_fresh() {
    let program = program();
    let prompt = text(200, 0);
    let mut bytes = vec![];
    {
        let mut runner = runner(&program, 1, None);
        answer(&mut runner, sampled(prompt.clone(), 1));
        let n = runner.save_prefix(&Prompt::from(prompt.clone()), 0, &mut bytes).unwrap();
        assert_eq!(n, 200);
    }
    let mut runner = runner(&program, 1, None);
    assert_eq!(runner.restore_prefix(&mut bytes.as_slice(), 0).unwrap(), 200);
    let request = sampled(prompt.into_iter().chain(text(30, 2)).collect(), 5);
    assert_eq!(answer(&mut runner, request.clone()), (fresh(&program, &request), 200));
}

#[test]
fn chunks_of_any_length_give_the_same_logits() {
    let mut runner = runner(&program(), 1, None);
    let tokens = text(150, 0);
    let mut logits = |chunk| {
        let mut all = vec![];
        let mut sink = |_: usize, rows: &[f32]| all.extend_from_slice(rows);
        runner.logits(&tokens, Rows::All, Some(chunk), &mut sink).unwrap();
        all
    };
    let whole = logits(64);
    assert_eq!(whole.len(), 150 * VOCAB as usize);
    assert_eq!(logits(1), whole);
    assert_eq!(logits(37), whole);
}
