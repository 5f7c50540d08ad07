//! The token loop allocates nothing once it is warm, but for what a new page needs.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use lapidary_backend::{
    Abilities, Call, CallLimits, Engine, LoadOptions, PAGE, PageId, Result, Results, Ticket,
};
use lapidary_backend_kit::answer;
use lapidary_program::{
    AttentionSpec, DType, Description, GraphBuilder, MemoryStore, Metadata, Method, Op, Program,
    SamplingDefaults, StateDecl, Sym, ValueType, WeightDecl, blob, input, method, output,
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
    max_in_flight: usize,
    data: Vec<f32>,
    next: u64,
    under_way: VecDeque<(Ticket, Results)>,
    spare: Vec<Results>,
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

    fn abilities(&self) -> Abilities {
        let max_in_flight = self.max_in_flight;
        Abilities { max_top_k: 64, prefers_top_k: false, max_in_flight }
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        self.data.clear();
        // Only the last token of a span is ever asked for here.
        for span in call.spans {
            let position = (span.start + span.len) as usize;
            let row = (0..VOCAB as usize).map(|i| ((i * 7919 + position * 104_729) % 1009) as f32);
            self.data.extend(row.map(|x| x / 200.0));
        }
        let mut results = self.spare.pop().unwrap_or_default();
        results.clear();
        let logits = (output::LOGITS, VOCAB as usize);
        answer(&mut results, logits, &self.data, &call.want(output::LOGITS));
        self.next += 1;
        self.under_way.push_back((Ticket(self.next), results));
        Ok(Ticket(self.next))
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        let (first, made) = self.under_way.pop_front().unwrap();
        assert_eq!(first, ticket);
        self.spare.push(std::mem::replace(results, made));
        Ok(true)
    }

    fn release(&mut self, _: Ticket) {}

    fn copy_pages(&mut self, _: usize, _: &[(PageId, PageId)]) -> Result<()> {
        Ok(())
    }

    fn page_bytes(&self, _: usize) -> usize {
        0
    }

    fn read_page(&mut self, _: usize, _: PageId, _: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn write_page(&mut self, _: usize, _: PageId, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn trace(&mut self, _: &Call<'_>, _: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        Ok(())
    }
}

fn engine(max_in_flight: usize) -> Quiet {
    let table = WeightDecl::dense([u64::from(VOCAB), 4], DType::F32);
    let weights = BTreeMap::from([("table".to_string(), table)]);
    let states =
        vec![StateDecl { name: "kv".into(), n_kv_heads: 1, head_dim: 4, window: Some(200) }];
    let mut g = GraphBuilder::new(&weights, &states);
    let tokens = g.input(input::TOKENS, ValueType::indices(Sym::Tokens));
    let rows = g.input(input::ROWS, ValueType::indices(Sym::Rows));
    let embed = Op::embed("table", 1.0);
    let x = g.node("embed", embed, &[tokens]).unwrap();
    g.node("write", Op::KvWrite { state: "kv".into() }, &[x, x]).unwrap();
    let spec = AttentionSpec {
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 4,
        scale: 1.0,
        window: Some(200),
        bidirectional: false,
        own_key: true,
    };
    let attend = Op::Attention { state: "kv".into(), spec };
    let x = g.node("attend", attend, &[x]).unwrap();
    let x = g.node("rows", Op::GatherRows, &[x, rows]).unwrap();
    let head = Op::Linear { weight: "table".into(), bias: None };
    let logits = g.node("head", head, &[x]).unwrap();
    g.output(output::LOGITS, logits);
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
        answer: None,
    };
    let methods = BTreeMap::from([(method::FORWARD.to_string(), forward)]);
    let description = Description { metadata, states, methods, weights };
    let tokenizer = include_bytes!("../../text/tests/data/tokenizer.json")[..].into();
    let blobs = BTreeMap::from([(blob::TOKENIZER.to_string(), tokenizer)]);
    let program = Program::new(description, blobs, Arc::new(MemoryStore::default())).unwrap();
    let limits = CallLimits { chunk: 64, tokens: 65, block: 64 };
    let options = LoadOptions {
        max_context: 4096,
        n_sequences: 2,
        limits,
        pages: limits.pages(&program, 4096, 2),
        ..LoadOptions::default()
    };
    Quiet {
        program: Arc::new(program),
        options,
        max_in_flight,
        data: Vec::new(),
        next: 0,
        under_way: VecDeque::new(),
        spare: Vec::new(),
    }
}

#[test]
fn the_token_loop_allocates_for_pages_alone() {
    for max_in_flight in [1, 2] {
        run(max_in_flight);
    }
}

fn run(max_in_flight: usize) {
    let mut runner = Runner::new(Box::new(engine(max_in_flight))).unwrap();
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
            _ => {}
        };
        for _ in 0..100 {
            runner.step(&mut on_event);
        }
        let before = COUNT.get();
        for _ in 0..800 {
            assert!(runner.step(&mut on_event));
        }
        let allocations = COUNT.get() - before;
        // Two sequences begin a page each every so many tokens.
        let pages = 2 * (800 / PAGE + 1);
        assert!(allocations <= 12 * pages, "{allocations} in 1600 tokens");
        while runner.step(&mut on_event) {}
        assert_eq!(tokens, 2000);
        assert!(bytes > 1000);
    }
}
