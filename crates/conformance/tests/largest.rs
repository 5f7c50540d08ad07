//! Tokens chosen from the largest logits that an engine finds are those chosen from whole rows.

use std::io::Write as _;
use std::sync::Arc;

use lapidary_backend::{Backend as _, Engine, Feed, LoadOptions, Outputs, Precision, Result};
use lapidary_backend_wgpu::WgpuBackend;
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

    fn run(&mut self, method: &str, feeds: &[Feed<'_>], outputs: &mut Outputs) -> Result<()> {
        self.0.run(method, feeds, outputs)
    }

    fn trace(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.0.trace(method, feeds, sink)
    }
}

fn answer(runner: &mut Runner, params: &SamplingParams) -> Vec<u32> {
    let tokens = runner.text_prompt("Once upon a time there was").unwrap();
    let request = Request { max_new: N, ignore_eos: true, ..Request::new(tokens, params.clone()) };
    let mut ids = Vec::new();
    let told = |event: Event<'_>| {
        if let Event::Token { id } = event {
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
        let device = match backend.probe() {
            Ok(mut devices) => devices.remove(0),
            Err(e) => {
                _ = writeln!(std::io::stderr(), "SKIPPED: {e}");
                continue;
            }
        };
        let options = LoadOptions {
            max_context: 128,
            max_chunk: 32,
            n_slots: 1,
            precision: Precision::Exact,
            methods: vec!["forward".to_string()],
            ..LoadOptions::default()
        };
        let load = || backend.load(&program, &device, &options, &mut |_, _| {}).unwrap();
        let engine = load();
        assert!(engine.max_largest() >= 64);
        let mut some = Runner::new(engine).unwrap();
        let mut whole = Runner::new(Box::new(Whole(load()))).unwrap();
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
