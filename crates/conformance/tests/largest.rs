//! Tokens chosen from the largest logits that an engine finds are those chosen from whole rows.

use std::io::Write as _;
use std::sync::Arc;

use lapidary_backend::{
    Abilities, Backend as _, Call, Engine, LoadOptions, PageId, Precision, Result, Results, Ticket,
};
use lapidary_backend_wgpu::WgpuBackend;
use lapidary_conformance::{limits, load};
use lapidary_program::Program;
use lapidary_runner::{CancelToken, Event, Request, Runner, SamplingParams};

const BACKENDS: &[WgpuBackend] = &[WgpuBackend::VULKAN, WgpuBackend::VULKAN.with_least()];

/// Tokens of an answer.
const N: usize = 8;

/// An engine that gives whole rows only.
struct Whole(Box<dyn Engine>);

impl Engine for Whole {
    fn program(&self) -> &Arc<Program> {
        self.0.program()
    }

    fn options(&self) -> &LoadOptions {
        self.0.options()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn abilities(&self) -> Abilities {
        Abilities { prefers_top_k: false, max_in_flight: 1, ..self.0.abilities() }
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        self.0.submit(call)
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        self.0.poll(ticket, results)
    }

    fn release(&mut self, ticket: Ticket) {
        self.0.release(ticket);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        self.0.copy_pages(group, pairs)
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.0.page_bytes(group)
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        self.0.read_page(group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        self.0.write_page(group, page, bytes)
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.0.trace(call, sink)
    }
}

fn answer(runner: &mut Runner, params: &SamplingParams) -> Vec<u32> {
    let tokens = runner.text_prompt("Once upon a time there was").unwrap();
    let request = Request { max_new: N, ignore_eos: true, ..Request::new(tokens, params.clone()) };
    let mut ids = Vec::new();
    let told = |event: Event<'_>| {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
    };
    runner.generate(request, &CancelToken::new(), told).unwrap();
    ids
}

#[test]
fn the_largest_logits_give_the_same_tokens() {
    let program = Arc::new(lapidary_pebble::open().unwrap());
    for backend in BACKENDS {
        if let Err(e) = backend.devices() {
            _ = writeln!(std::io::stderr(), "SKIPPED: {e}");
            continue;
        }
        let options = LoadOptions {
            max_context: 128,
            n_sequences: 1,
            limits: limits(32, 1),
            precision: Precision::Exact,
            methods: vec!["forward".to_string()],
            ..LoadOptions::default()
        };
        let engine = || load(backend, &program, &options).unwrap();
        let first = engine();
        assert!(first.abilities().max_top_k >= 64);
        let mut some = Runner::new(first).unwrap();
        let mut whole = Runner::new(Box::new(Whole(engine()))).unwrap();
        let drawn = |seed| SamplingParams {
            temperature: 0.9,
            top_k: 40,
            seed: Some(seed),
            ..SamplingParams::greedy()
        };
        let suppressed = SamplingParams { suppress: vec![5, 6, 7], top_p: 0.9, ..drawn(3) };
        for params in [SamplingParams::greedy(), drawn(1), suppressed] {
            let wanted = answer(&mut whole, &params);
            assert_eq!(wanted.len(), N);
            assert_eq!(answer(&mut some, &params), wanted, "{params:?}");
        }
    }
}
