//! Quantising and writing a program takes a constant amount of memory, however large its weights
//! are and however many there are.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lapidary_program::{
    DType, Description, GraphBuilder, Metadata, Method, Op, Part, Program, SamplingDefaults, Sym,
    ValueType, WeightDecl, WeightStore, input, lap, method,
};
use lapidary_quantise::{Recipe, dequantise, quantise, synthetic};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(n: usize) {
    let live = LIVE.fetch_add(n, Ordering::Relaxed) + n;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting has no effect on memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is the system's.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// No bytes: synthetic ones take their place.
struct Absent;

impl WeightStore for Absent {
    fn part(&self, weight: &str, _: Part) -> lapidary_program::Result<Cow<'_, [u8]>> {
        let what = "absent".to_string();
        Err(lapidary_program::Error::Weight { weight: weight.to_string(), what })
    }
}

/// An embedding of `rows` × 1024 and a chain of `n` square linears of 1024 before the head, which is
/// as large as the embedding.
fn program(rows: u64, n: usize) -> Program {
    let mut weights: BTreeMap<String, WeightDecl> = BTreeMap::new();
    let table = WeightDecl::dense([rows, 1024], DType::Bf16);
    weights.insert("table".into(), table.clone());
    weights.insert("head".into(), table);
    for i in 0..n {
        weights.insert(format!("linear.{i}"), WeightDecl::dense([1024, 1024], DType::Bf16));
    }
    let mut g = GraphBuilder::new(&weights, &[]);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let asked = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let embed = Op::embed("table", 1.0);
    let mut x = g.node("embed", embed, &[tokens]).unwrap();
    for i in 0..n {
        let linear = Op::Linear { weight: format!("linear.{i}"), bias: None };
        x = g.node(format!("linear.{i}"), linear, &[x]).unwrap();
    }
    let x = g.node("rows", Op::GatherRows, &[x, asked]).unwrap();
    let head = Op::Linear { weight: "head".into(), bias: None };
    let logits = g.node("head", head, &[x]).unwrap();
    g.output("logits", logits);
    let graph = g.finish();
    let metadata = Metadata {
        name: "sample".into(),
        architecture: "sample".into(),
        made_by: "test".into(),
        vocab_size: rows as u32,
        max_context_len: 8,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![],
        suppress_ids: vec![],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
        answer: None,
    };
    let methods = [(method::FORWARD.to_string(), Method::new(8, graph))].into();
    let description = Description { metadata, states: vec![], methods, weights };
    let skeleton = Program::new(description, BTreeMap::new(), Arc::new(Absent)).unwrap();
    synthetic(&skeleton, None).unwrap()
}

/// The most bytes that were alive while the program was quantised and written.
fn peak(program: &Program, recipe: &Recipe) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let quantised = quantise(program, recipe).unwrap();
    let path = folder.path().join("out.lap");
    let mut told = 0;
    lap::write(&quantised, &path, &mut |_, _| {
        told += 1;
        true
    })
    .unwrap();
    lap::check_hashes(&path).unwrap();
    assert!(told > program.weights().len(), "progress is told {told} times");
    PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn memory_does_not_grow_with_the_weights() {
    let recipe = Recipe::from_toml(
        "name = 'test'\n[[rule]]\nmatch = '.*'\nbits = 4\ngroup = 32\nsymmetric = false\n",
    )
    .unwrap();
    // The largest weights are 16 and 128 MiB.
    let (small, large) = (program(8 << 10, 2), program(64 << 10, 24));
    let (peak_small, peak_large) = (peak(&small, &recipe), peak(&large, &recipe));
    let largest = large.weights().values().map(WeightDecl::size_bytes).max().unwrap() as usize;
    assert!(peak_large < largest / 2, "{peak_large} bytes for weights of {largest}");
    assert!(peak_large < peak_small + (4 << 20), "{peak_large} after {peak_small}");
    // The same where numbers are unpacked from one kind of codes to be packed in another.
    let coded = synthetic(&large, Some(&recipe)).unwrap();
    let peak_again = peak(&dequantise(&coded).unwrap(), &recipe);
    assert!(peak_again < largest, "{peak_again} bytes for weights of {largest}");
}
