//! Rows of weights from every kind of store, and what the nodes of a method are needed for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lapidary_backend_kit::{Derived, Form, Liveness, Purposes, RowSource, Table, last_uses};
use lapidary_program::{
    Access, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Part, Program,
    Result, SamplingDefaults, StateDecl, Sym, ValueType, WeightDecl, WeightStore, input,
};

const ROWS: u64 = 9;
const COLS: u64 = 4;

/// A store that makes its bytes when asked, all of them or just some rows.
struct Maker {
    source: MemoryStore,
    access: Access,
    /// How often all of a weight was made.
    whole: AtomicUsize,
}

impl WeightStore for Maker {
    fn part(&self, weight: &str, part: Part) -> Result<Cow<'_, [u8]>> {
        self.whole.fetch_add(1, Ordering::Relaxed);
        Ok(Cow::Owned(self.source.part(weight, part)?.into_owned()))
    }

    fn access(&self, _weight: &str) -> Access {
        self.access
    }

    fn make_rows(&self, weight: &str, part: Part, rows: Range<usize>) -> Option<Vec<u8>> {
        let all = self.source.part(weight, part).ok().filter(|_| self.access == Access::Rows)?;
        let row = COLS as usize * 4;
        Some(all[rows.start * row..rows.end * row].to_vec())
    }
}

fn numbers() -> Vec<f32> {
    (0..ROWS * COLS).map(|i| i as f32 - 7.5).collect()
}

fn store() -> MemoryStore {
    let mut store = MemoryStore::new();
    store.insert_f32("table", &numbers());
    store
}

fn maker(access: Access) -> Arc<Maker> {
    Arc::new(Maker { source: store(), access, whole: AtomicUsize::new(0) })
}

/// An embedding whose rows are a cache's keys, and with a norm of theirs two outputs.
fn program(store: Arc<dyn WeightStore>) -> Program {
    let weights =
        BTreeMap::from([("table".to_string(), WeightDecl::dense([ROWS, COLS], DType::F32))]);
    let states =
        vec![StateDecl { name: "kv".into(), n_kv_heads: 1, head_dim: COLS as u32, window: None }];
    let mut graph = GraphBuilder::new(&weights, &states);
    let tokens = graph.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let x = graph.node("embed", Op::embed("table", 1.0), &[tokens]).unwrap();
    let doubled = graph.node("doubled", Op::Scale { factor: 2.0 }, &[x]).unwrap();
    graph.node("write", Op::KvWrite { state: "kv".into() }, &[doubled, doubled]).unwrap();
    let a = graph.node("a", Op::Scale { factor: 3.0 }, &[x]).unwrap();
    let b = graph.node("b", Op::Add, &[a, a]).unwrap();
    graph.node("unused", Op::Scale { factor: 4.0 }, &[b]).unwrap();
    graph.output("a", a);
    graph.output("b", b);
    let methods = BTreeMap::from([("op".to_string(), Method::new(64, graph.finish()))]);
    let metadata = Metadata {
        name: "kit".into(),
        architecture: "kit".into(),
        made_by: "a test".into(),
        vocab_size: ROWS as u32,
        max_context_len: 64,
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
    Program::new(description, BTreeMap::new(), store).unwrap()
}

#[test]
fn rows_are_the_same_from_every_store_and_none_is_made_twice() {
    let made = |access| (access, maker(access));
    let makers = [made(Access::Rows), made(Access::Whole)];
    let stores = makers.iter().map(|(_, m)| m.clone() as Arc<dyn WeightStore>);
    for store in stores.chain([Arc::new(store()) as Arc<dyn WeightStore>]) {
        let program = program(store);
        let source = RowSource::open(&program, "table").unwrap();
        for rows in [0..2, 3..9, 8..9] {
            let part = rows.start * COLS as usize..rows.end * COLS as usize;
            assert_eq!(source.rows(rows).unwrap().to_f32(), numbers()[part]);
        }
        let table = Table::new(&program, "table").unwrap();
        for _ in 0..3 {
            let rows = table.open(&program).unwrap();
            let mut row = [0.0; COLS as usize];
            rows.row_f32(5, &mut row).unwrap();
            assert_eq!(row, numbers()[5 * COLS as usize..6 * COLS as usize]);
        }
        let kept = match program.store().access("table") {
            Access::Whole => 4 * ROWS * COLS,
            _ => 0,
        };
        assert_eq!(Table::size_bytes(&program, "table"), kept);
    }
    for (access, maker) in makers {
        // Once for the source and once for the table.
        let most = if access == Access::Whole { 2 } else { 0 };
        assert_eq!(maker.whole.load(Ordering::Relaxed), most, "{access:?}");
    }
}

#[test]
fn small_weights_are_made_in_their_form() {
    let program = program(Arc::new(store()));
    let make = |form| {
        let derived = Derived::new("table", form);
        let made = derived.make(&program).unwrap();
        assert_eq!(derived.size_bytes(&program), 4 * made.len() as u64);
        made
    };
    assert_eq!(make(Form::Plain), numbers());
    let doubled = make(Form::Factors { softplus: false, factor: 2.0 });
    assert!(doubled.iter().zip(numbers()).all(|(made, x)| *made == 2.0 * x));
    assert_eq!(make(Form::Transposed)[..2], [numbers()[0], numbers()[COLS as usize]]);
}

#[test]
fn values_live_to_their_last_reader_and_outputs_for_ever() {
    let program = program(Arc::new(store()));
    let method = program.method("op").unwrap();
    // Tokens, x, doubled, a, b, and what nobody reads.
    assert_eq!(last_uses(method), [Some(0), Some(3), Some(2), None, None, Some(5)]);
    let live = Liveness::of_nodes(method);
    assert_eq!(live.ended(2, [1, 2, 2, 0]), [2, 0]);
    // Two steps, of which the second reads everything again and again.
    let steps = [vec![0, 1, 2], vec![3, 4, 5]];
    let live = Liveness::of_steps(method, &steps, |step, value| step == 1 && value == 1);
    assert!(!live.ends(1, 1) && live.ends(2, 0) && live.ends(5, 1) && !live.ends(4, 1));
}

#[test]
fn nodes_serve_what_they_reach() {
    let program = program(Arc::new(store()));
    let nodes = Purposes::of(program.method("op").unwrap());
    let run = |wanted: [bool; 2]| {
        let call = Purposes::wanted(wanted);
        nodes.iter().map(|node| node.serves(call)).collect::<Vec<_>>()
    };
    // Embed, doubled, write, a, b, unused.
    assert_eq!(run([false, false]), [true, true, true, false, false, false]);
    assert_eq!(run([true, false]), [true, true, true, true, false, false]);
    assert_eq!(run([false, true]), [true, true, true, true, true, false]);
}
