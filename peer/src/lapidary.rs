//! Lapidary's side, through its public contracts: `Backend`, `Engine`, `Runner`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use lapidary_backend::{Engine, Feed, LoadOptions, Outputs};
use lapidary_gemma::OpenOptions;
use lapidary_program::{Program, input, method};
use lapidary_runner::{
    BenchTest, CancelToken, Event, Request, Runner, SamplingParams, bench_medium, bench_once,
    load_tokenizer_cached,
};

use crate::args::EngineArgs;
use crate::media::{self, Cost};
use crate::protocol::{Test, arbitrary_tokens};
use crate::worker;

/// Where the command keeps packed weights and tokenizers, too: a second start is measured, so the
/// first one of a model must have been before.
fn cache_root() -> Option<PathBuf> {
    match std::env::var_os("LAPIDARY_CACHE") {
        Some(off) if off == "off" => None,
        Some(root) => Some(root.into()),
        None => Some(std::env::temp_dir().join("lapidary-peer-cache")),
    }
}

/// Calls of one verifying measurement; their median counts.
const VERIFY_CALLS: usize = 7;

/// A model on the best backend of this machine.
pub struct Lapidary {
    runner: Runner,
    engine: Shared,
    outputs: Outputs,
}

impl Lapidary {
    /// Does what `lapidary run` does.
    pub fn load(args: &EngineArgs) -> Result<Self> {
        let options = OpenOptions { mmproj: args.mmproj.clone(), ..OpenOptions::default() };
        let program = lapidary_gemma::open(&args.model, &options)?;
        let cache = cache_root();
        let tokenizer = load_tokenizer_cached(&program, cache.as_deref())?;
        let tokenizer = tokenizer.map(|(tokenizer, _)| Arc::new(tokenizer));
        let program = Arc::new(program);
        let registry = lapidary_backends::all();
        let (backend, device, _) = registry.auto()?;
        let allowed = program.method(method::FORWARD)?.max_chunk;
        let options = LoadOptions {
            max_context: args.context,
            max_chunk: backend.preferred_chunk().min(allowed).min(args.context),
            n_slots: 1,
            threads: Some(usize::from(args.threads)),
            pack_cache: cache.map(|root| root.join("packs")),
            ..LoadOptions::default()
        };
        let engine = Shared::new(backend.load(&program, &device, &options, &mut |_, _| {})?);
        let runner = Runner::with_parts(Box::new(engine.clone()), tokenizer, None)?;
        Ok(Lapidary { runner, engine, outputs: Outputs::default() })
    }

    /// The runner asks for one row of logits; a call that checks a draft asks for all of them.
    fn verify(&mut self, n: usize, depth: usize) -> Result<f64> {
        let tokens = arbitrary_tokens(depth + n, self.runner.metadata().vocab_size);
        let (before, checked) = tokens.split_at(depth);
        let chunk = self.engine.options.max_chunk.max(1) as usize;
        for (i, part) in before.chunks(chunk).enumerate() {
            self.call(part, i * chunk, 1)?;
        }
        let mut seconds = Vec::with_capacity(VERIFY_CALLS);
        for _ in 0..VERIFY_CALLS {
            let start = Instant::now();
            self.call(checked, depth, n)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        // What the runner believes to be in the caches has been overwritten.
        self.runner.forget();
        Ok(crate::report::median(&seconds))
    }

    /// Runs tokens from a position on; `n_rows` of them, from the end, reach the output head.
    fn call(&mut self, tokens: &[u32], position: usize, n_rows: usize) -> Result<()> {
        let n = tokens.len();
        let count = |from: usize, to: usize| (from..to).map(|i| i as i32).collect::<Vec<i32>>();
        let ids: Vec<i32> = tokens.iter().map(|t| *t as i32).collect();
        let positions = count(position, position + n);
        let rows = count(n - n_rows.min(n), n);
        let (slots, soft_index) = (vec![0; n], vec![-1; n]);
        let feeds = [
            Feed::i32(input::TOKENS, &ids),
            Feed::i32(input::SLOTS, &slots),
            Feed::i32(input::POSITIONS, &positions),
            Feed::i32(input::HORIZONS, &positions),
            Feed::i32(input::ROWS, &rows),
            Feed::i32(input::SOFT_INDEX, &soft_index),
            Feed::f32(input::SOFT, &[]),
        ];
        self.engine.lock().run(method::FORWARD, &feeds, &mut self.outputs)?;
        let logits = self.outputs.get("logits").context("`forward` has no logits")?;
        if logits.data.len() != n_rows * logits.channels {
            bail!("asked for {n_rows} rows of logits, got {} numbers", logits.data.len());
        }
        Ok(())
    }
}

impl worker::Engine for Lapidary {
    fn describe(&self) -> String {
        format!("lapidary · {}", self.runner.describe())
    }

    fn measure(&mut self, test: Test) -> Result<f64> {
        Ok(match test {
            Test::Prompt { n, depth } => {
                bench_once(&mut self.runner, BenchTest { n_prompt: n, n_gen: 0, depth })?
            }
            Test::Generate { n, depth } => {
                bench_once(&mut self.runner, BenchTest { n_prompt: 0, n_gen: n, depth })?
            }
            Test::Verify { n, depth } => self.verify(n, depth)?,
            Test::Picture { .. } | Test::Sound { .. } => self.show(test)?.first_token_s,
        })
    }

    fn show(&mut self, test: Test) -> Result<Cost> {
        let input = media::input(test, &self.runner.metadata().media)?;
        let input = input.with_context(|| format!("{} shows nothing", test.name()))?;
        let times = bench_medium(&mut self.runner, &input, media::TEXT_TOKENS)?;
        Ok(Cost {
            encode_s: times.encode_s,
            first_token_s: times.first_token_s,
            n_soft: input.n_soft,
        })
    }

    fn generate(&mut self, text: &str, n: usize, on_token: &mut dyn FnMut(u32)) -> Result<()> {
        let prompt = self.runner.text_prompt(text)?;
        let request = Request {
            max_new: n,
            ignore_eos: true,
            ..Request::new(prompt, SamplingParams::greedy())
        };
        self.runner.generate(request, &CancelToken::new(), |event| {
            if let Event::Token { id } = event {
                on_token(id);
            }
        })?;
        Ok(())
    }
}

/// An engine that the runner owns and that can still be called past it.
#[derive(Clone)]
struct Shared {
    engine: Arc<Mutex<Box<dyn Engine>>>,
    program: Arc<Program>,
    options: LoadOptions,
}

impl Shared {
    fn new(engine: Box<dyn Engine>) -> Self {
        let (program, options) = (engine.program().clone(), engine.options().clone());
        Shared { engine: Arc::new(Mutex::new(engine)), program, options }
    }

    fn lock(&self) -> MutexGuard<'_, Box<dyn Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for Shared {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        self.lock().describe()
    }

    fn run(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        outputs: &mut Outputs,
    ) -> lapidary_backend::Result<()> {
        self.lock().run(method, feeds, outputs)
    }

    fn trace(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> lapidary_backend::Result<()> {
        self.lock().trace(method, feeds, sink)
    }
}
