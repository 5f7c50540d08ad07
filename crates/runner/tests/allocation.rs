//! The token loop allocates nothing once it is warm.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{Engine, Feed, FeedData, LoadOptions, Outputs, Result};
use lapidary_program::{
    DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program, SamplingDefaults,
    Sym, ValueType, WeightDecl, blob, input, method,
};
use lapidary_runner::{CancelToken, Event, Request, Runner, SamplingParams};

struct Counting;

thread_local! {
    /// Allocations of this thread: the test harness has threads of its own.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = COUNT.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; counting has no effect on memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`, which is the system's.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `realloc`, which is the system's.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Logits that depend on the position alone; allocates nothing.
struct Quiet {
    program: Arc<Program>,
    options: LoadOptions,
}

const VOCAB: u32 = 396;

impl Engine for Quiet {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        "quiet".into()
    }

    fn run(&mut self, _: &str, feeds: &[Feed<'_>], outputs: &mut Outputs) -> Result<()> {
        let get = |name: &str| match feeds.iter().find(|f| f.name == name).map(|f| f.data) {
            Some(FeedData::I32(d)) => d,
            _ => &[],
        };
        let (positions, rows) = (get(input::POSITIONS), get(input::ROWS));
        let out = outputs.prepare(0, "logits", rows.len(), VOCAB as usize);
        for (i, x) in out.iter_mut().enumerate() {
            let position = positions[rows[i / VOCAB as usize] as usize] as usize;
            *x = ((i * 7919 + position * 104_729) % 1009) as f32 / 200.0;
        }
        Ok(())
    }

    fn trace(&mut self, _: &str, _: &[Feed<'_>], _: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        Ok(())
    }
}

fn engine() -> Quiet {
    let table = WeightDecl::dense([u64::from(VOCAB), 4], DType::F32);
    let weights = BTreeMap::from([("table".to_string(), table)]);
    let mut g = GraphBuilder::new(&weights, &[]);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let embed = Op::embed("table", 1.0);
    let x = g.node("embed", embed, &[tokens]).unwrap();
    let x = g.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let head = Op::Linear { weight: "table".into(), bias: None };
    let logits = g.node("head", head, &[x]).unwrap();
    g.output("logits", logits);
    let forward = Method::new(64, g.finish());
    let metadata = Metadata {
        name: "quiet".into(),
        architecture: "quiet".into(),
        made_by: "tests".into(),
        vocab_size: VOCAB,
        max_context_len: 4096,
        bos_id: None,
        pad_id: None,
        eos_ids: vec![1],
        suppress_ids: vec![0, 1],
        add_bos: false,
        sampling: SamplingDefaults::default(),
        media: Default::default(),
    };
    let methods = BTreeMap::from([(method::FORWARD.to_string(), forward)]);
    let description = Description { metadata, states: vec![], methods, weights };
    let tokenizer = include_bytes!("data/tokenizer.json")[..].into();
    let blobs = BTreeMap::from([(blob::TOKENIZER.to_string(), tokenizer)]);
    let program = Program::new(description, blobs, Arc::new(MemoryStore::default())).unwrap();
    let options = LoadOptions {
        max_context: 4096,
        max_chunk: 64,
        n_slots: 2,
        threads: None,
        ..LoadOptions::default()
    };
    Quiet { program: Arc::new(program), options }
}

#[test]
fn the_token_loop_allocates_nothing() {
    let mut runner = Runner::new(Box::new(engine())).unwrap();
    let cancel = CancelToken::new();
    let params = SamplingParams {
        temperature: 0.8,
        top_k: 64,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        seed: Some(1),
        ..SamplingParams::default()
    };
    for params in [params, SamplingParams::greedy()] {
        let request = Request {
            max_new: 1000,
            stop: vec!["never to be seen".into(), "nor this".into()],
            ..Request::new((20..120).collect::<Vec<u32>>(), params)
        };
        runner.submit(request.clone(), &cancel).unwrap();
        runner.submit(request, &cancel).unwrap();
        let (mut tokens, mut bytes) = (0usize, 0usize);
        let mut on_event = |_, event: Event<'_>| match event {
            Event::Token { .. } => tokens += 1,
            Event::Text { text } => bytes += text.len(),
            Event::Finished(_) | Event::Failed(_) => {}
        };
        for _ in 0..100 {
            runner.step(&mut on_event);
        }
        let before = COUNT.get();
        for _ in 0..800 {
            assert!(runner.step(&mut on_event));
        }
        let allocations = COUNT.get() - before;
        assert_eq!(allocations, 0, "in 1600 tokens");
        while runner.step(&mut on_event) {}
        assert_eq!(tokens, 2000);
        assert!(bytes > 1000);
    }
}
