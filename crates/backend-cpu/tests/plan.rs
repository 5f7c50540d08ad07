//! What `plan` says is what `load` takes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use lapidary_backend::{
    Backend, Call, Device, DeviceId, Feed, KvType, LoadOptions, MemoryPlan, PageId, PageTable,
    Precision, Results, Span, Wanted, Wishes,
};
use lapidary_backend_cpu::CpuBackend;
use lapidary_program::{
    Access, AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op,
    Part, Program, Result, SamplingDefaults, StateDecl, Sym, ValueType, WeightDecl, WeightStore,
    input,
};

const VOCAB: u64 = 101;
const HIDDEN: u64 = 48;

fn device() -> Box<dyn Device> {
    CpuBackend.open(&DeviceId::new("cpu", 0)).unwrap()
}

fn options(program: &Program) -> LoadOptions {
    let (max_context, n_sequences) = (1000, 3);
    let wishes = Wishes { max_context, n_sequences, chunk: Some(64), block: None };
    let limits = device().limits(program, &wishes);
    let pages = limits.pages(program, max_context, n_sequences);
    LoadOptions {
        max_context,
        n_sequences,
        limits,
        pages,
        threads: Some(2),
        ..LoadOptions::default()
    }
}

/// A store that makes its bytes when asked, like an importer that converts.
struct Maker(MemoryStore);

impl WeightStore for Maker {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        Ok(Cow::Owned(self.0.part(weight, part)?.into_owned()))
    }

    fn access(&self, _weight: &str) -> Access {
        Access::Whole
    }
}

/// A store that makes single rows.
struct RowMaker(Maker);

impl WeightStore for RowMaker {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        self.0.part(weight, part)
    }

    fn access(&self, _weight: &str) -> Access {
        Access::Rows
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        let all = self.part(weight, part).ok()?;
        let row = (HIDDEN * 2) as usize;
        Some(all[rows.start * row..rows.end * row].to_vec())
    }
}

fn store() -> MemoryStore {
    let mut store = MemoryStore::new();
    for name in ["embed", "head"] {
        // Small positive numbers, whatever is read as bf16.
        let bytes = (0..VOCAB * HIDDEN * 2).map(|i| (i * i % 59) as u8);
        store.insert(name, Part::Data, bytes.collect());
    }
    store
}

/// Embedding, caches with a window and without, attention, and a head with the given weight.
fn program(head: &str, store: Arc<dyn WeightStore>) -> Program {
    let decl = WeightDecl::dense([VOCAB, HIDDEN], DType::Bf16);
    let weights = BTreeMap::from([("embed".to_string(), decl.clone()), ("head".to_string(), decl)]);
    let state = |name: &str, window| StateDecl {
        name: name.to_string(),
        n_kv_heads: 2,
        head_dim: 24,
        window,
    };
    let states = vec![state("near", Some(100)), state("all", None)];
    let mut graph = GraphBuilder::new(&weights, &states);
    let tokens = graph.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = graph.input(input::ROWS, ValueType::indices(Sym::Rows));
    let embed = Op::embed("embed", 1.0);
    let mut x = graph.node("embed", embed, &[tokens]).unwrap();
    for state in &states {
        let op = Op::KvWrite { state: state.name.clone() };
        graph.node(format!("{} write", state.name), op, &[x, x]).unwrap();
        let spec = AttentionSpec {
            n_heads: 2,
            n_kv_heads: 2,
            head_dim: 24,
            scale: 1.0,
            window: state.window,
            bidirectional: false,
            own_key: true,
        };
        let op = Op::Attention { state: state.name.clone(), spec };
        x = graph.node(state.name.clone(), op, &[x]).unwrap();
    }
    let x = graph.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let op = Op::Linear { weight: head.into(), bias: None };
    let logits = graph.node("head", op, &[x]).unwrap();
    graph.output("logits", logits);
    let methods = BTreeMap::from([("forward".to_string(), Method::new(64, graph.finish()))]);
    let metadata = Metadata {
        name: "plan".into(),
        architecture: "plan".into(),
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
    Program::new(description, BTreeMap::new(), store).unwrap()
}

fn plan(program: &Program) -> MemoryPlan {
    device().plan(program, &options(program)).unwrap()
}

/// A head of 101 rows is packed as 112.
const PACKED: u64 = 112 * HIDDEN * 2;

#[test]
fn a_tied_head_is_stored_once() {
    assert_eq!(plan(&program("embed", Arc::new(store()))).weights, PACKED);
    assert_eq!(plan(&program("embed", Arc::new(Maker(store())))).weights, PACKED);
}

#[test]
fn a_table_stays_in_a_store_that_lends() {
    assert_eq!(plan(&program("head", Arc::new(store()))).weights, PACKED);
}

#[test]
fn a_table_stays_in_a_store_that_makes_rows() {
    assert_eq!(plan(&program("head", Arc::new(RowMaker(Maker(store()))))).weights, PACKED);
}

#[test]
fn a_table_is_read_alike_from_every_store() {
    let stores: [Arc<dyn WeightStore>; 3] =
        [Arc::new(store()), Arc::new(Maker(store())), Arc::new(RowMaker(Maker(store())))];
    let logits = stores.map(|store| {
        let program = Arc::new(program("head", store));
        let mut engine = device().load(&program, &options(&program), &mut |_, _| {}).unwrap();
        let feeds = [Feed::i32(input::TOKENS, &[100, 7]), Feed::i32(input::ROWS, &[1])];
        let tables = [PageTable { first: 0, pages: &[PageId(2)] }; 2];
        let call = Call {
            method: "forward",
            feeds: &feeds,
            spans: &[Span { start: 0, len: 2, tables: &tables }],
            wants: &[Wanted::whole("logits")],
            ..Call::default()
        };
        let mut results = Results::default();
        engine.run(&call, &mut results).unwrap();
        results.get("logits").unwrap().data.clone()
    });
    assert!(logits[0].iter().any(|x| *x != 0.0));
    assert_eq!(logits[0], logits[1]);
    assert_eq!(logits[0], logits[2]);
}

#[test]
fn a_table_from_a_store_that_makes_is_kept() {
    let kept = VOCAB * HIDDEN * 2;
    assert_eq!(plan(&program("head", Arc::new(Maker(store())))).weights, PACKED + kept);
}

#[test]
fn caches_are_counted_as_padded_and_stored() {
    // Pages of 128 positions; values of 24 channels are padded to 32. Bytes have a scale for each key
    // and value.
    let pages = vec![24, 7];
    let rows = (24 + 7) * 128 * 2;
    for (kv, of_row) in [
        (KvType::F32, (24 + 32) * 4),
        (KvType::Bf16, (24 + 32) * 2),
        (KvType::Int8, 24 + 32 + 2 * 4),
    ] {
        let program = program("embed", Arc::new(store()));
        let options = LoadOptions { kv: Some(kv), pages: pages.clone(), ..options(&program) };
        assert_eq!(device().plan(&program, &options).unwrap().kv, rows * of_row, "{kv:?}");
    }
}

#[test]
fn exact_results_need_caches_that_do_not_round() {
    let kv = |precision, kv| {
        let program = program("embed", Arc::new(store()));
        let options = LoadOptions { precision, kv, ..options(&program) };
        device().plan(&program, &options).unwrap().kv
    };
    let [whole, half] = [KvType::F32, KvType::Bf16].map(|t| kv(Precision::Fast, Some(t)));
    assert_eq!(kv(Precision::Exact, None), whole);
    assert_eq!(kv(Precision::Exact, Some(KvType::Bf16)), half);
    assert_eq!(kv(Precision::Fast, None), half);
}

#[test]
fn logits_are_planned_for_one_row_per_sequence() {
    let activations = plan(&program("embed", Arc::new(store()))).activations;
    // Two buffers of a call, which has a chunk and the next token of two other sequences; the rows
    // and logits of three sequences find room in them too (those of a whole chunk would not). Then
    // attention's scratch, the 8 blocks of one token, and the head's rows as `bf16`.
    let buffers = 2 * (64 + 2) * HIDDEN * 4;
    let scratch = 2 * 48 * (24 + 128 + 2 * 26) * 4 + 2 * 26 * 8 * 4;
    let rounded = 3 * HIDDEN * 2;
    assert_eq!(activations, buffers + scratch + rounded);
}
