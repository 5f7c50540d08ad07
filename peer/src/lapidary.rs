//! Lapidary's side, through the library, and past it where a draft is checked.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use lapidary::backend::{
    Abilities, Call, Engine, Feed, LoadOptions, PageId, PageTable, Results, Span, Ticket, Wanted,
    pages_for,
};
use lapidary::program::{Program, input, method, output};
use lapidary::runner::{Event, Request};
use lapidary::{CancelToken, Load, Model, Open, Runner, SamplingParams};
use lapidary_measure::{BenchTest, bench_medium, bench_once};

use crate::args::EngineArgs;
use crate::media::{self, Cost};
use crate::protocol::{Test, arbitrary_tokens};
use crate::worker;

/// Calls of one verifying measurement; their median counts.
const VERIFY_CALLS: usize = 7;

/// A model on the best backend of this machine.
pub struct Lapidary {
    model: Model,
    runner: Runner,
    engine: Shared,
    results: Results,
}

impl Lapidary {
    /// Does what `lapidary run` does.
    pub fn load(args: &EngineArgs) -> Result<Self> {
        let open = match &args.mmproj {
            Some(path) => Open::new().mmproj(path),
            None => Open::new(),
        };
        let model = open.open(&args.model)?;
        let threads = usize::from(args.threads);
        let load = Load::default().context(args.context).threads(threads).sequences(1);
        let engine = Shared::new(model.load_engine(&load)?.engine);
        let runner = Runner::with_prompts(Box::new(engine.clone()), model.prompts().clone())?;
        Ok(Lapidary { model, runner, engine, results: Results::default() })
    }

    /// The runner asks for one row of logits; a call that checks a draft asks for all of them.
    fn verify(&mut self, n: usize, depth: usize) -> Result<f64> {
        let tokens = arbitrary_tokens(depth + n, self.runner.metadata().vocab_size);
        let (before, checked) = tokens.split_at(depth);
        // What the runner believes to be in the pages is overwritten.
        self.runner.forget();
        let chunk = self.engine.options.limits.chunk.max(1) as usize;
        for (i, part) in before.chunks(chunk).enumerate() {
            self.call(part, i * chunk, 1)?;
        }
        let mut seconds = Vec::with_capacity(VERIFY_CALLS);
        for _ in 0..VERIFY_CALLS {
            let start = Instant::now();
            self.call(checked, depth, n)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(crate::report::median(&seconds))
    }

    /// Runs tokens from a position on; `n_rows` of them, from the end, reach the output head.
    fn call(&mut self, tokens: &[u32], position: usize, n_rows: usize) -> Result<()> {
        let n = tokens.len();
        let ids: Vec<i32> = tokens.iter().map(|t| *t as i32).collect();
        let rows: Vec<i32> = (n - n_rows.min(n)..n).map(|i| i as i32).collect();
        let soft_index = vec![-1; n];
        let feeds = [
            Feed::i32(input::TOKENS, &ids),
            Feed::i32(input::ROWS, &rows),
            Feed::i32(input::SOFT_INDEX, &soft_index),
            Feed::f32(input::SOFT, &[]),
        ];
        let pages: Vec<(u32, Vec<PageId>)> = self.pages(position + n);
        let tables: Vec<PageTable<'_>> =
            pages.iter().map(|(first, pages)| PageTable { first: *first, pages }).collect();
        let spans = [Span { start: position as u32, len: n as u32, tables: &tables }];
        let wants = [Wanted::whole(output::LOGITS)];
        let call = Call {
            method: method::FORWARD,
            feeds: &feeds,
            spans: &spans,
            horizons: &[],
            wants: &wants,
            stop: None,
        };
        self.engine.lock().run(&call, &mut self.results)?;
        let logits = self.results.get(output::LOGITS).context("`forward` has no logits")?;
        if logits.data.len() != n_rows * logits.channels {
            bail!("asked for {n_rows} rows of logits, got {} numbers", logits.data.len());
        }
        Ok(())
    }

    /// The pages of the only sequence there is, up to a position: of a window's group the last ones,
    /// over and over.
    fn pages(&self, end: usize) -> Vec<(u32, Vec<PageId>)> {
        let options = &self.engine.options;
        let group = |g: usize| {
            let pool = options.pages_of(g).max(1);
            let (needed, first) = (pages_for(end), pages_for(end).saturating_sub(pool));
            let page = |number: usize| PageId((number % pool) as u32);
            (first as u32, (first..needed).map(page).collect())
        };
        (0..self.model.program().kv_groups().len()).map(group).collect()
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
            Test::Image { .. } | Test::Audio { .. } => self.show(test)?.first_token_s,
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
        let prompt = self.model.tokenise(text)?;
        let request = Request {
            max_new: n,
            ignore_eos: true,
            ..Request::new(prompt, SamplingParams::greedy())
        };
        self.runner.generate(request, &CancelToken::new(), |event| {
            if let Event::Token { id, .. } = event {
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

    fn abilities(&self) -> Abilities {
        self.lock().abilities()
    }

    fn submit(&mut self, call: &Call<'_>) -> lapidary::backend::Result<Ticket> {
        self.lock().submit(call)
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> lapidary::backend::Result<bool> {
        self.lock().poll(ticket, results)
    }

    fn wait(&mut self, ticket: Ticket, results: &mut Results) -> lapidary::backend::Result<()> {
        self.lock().wait(ticket, results)
    }

    fn release(&mut self, ticket: Ticket) {
        self.lock().release(ticket);
    }

    fn run(&mut self, call: &Call<'_>, results: &mut Results) -> lapidary::backend::Result<()> {
        self.lock().run(call, results)
    }

    fn copy_pages(
        &mut self,
        group: usize,
        pairs: &[(PageId, PageId)],
    ) -> lapidary::backend::Result<()> {
        self.lock().copy_pages(group, pairs)
    }

    fn page_layout(&self) -> String {
        self.lock().page_layout()
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.lock().page_bytes(group)
    }

    fn read_page(
        &mut self,
        group: usize,
        page: PageId,
        bytes: &mut Vec<u8>,
    ) -> lapidary::backend::Result<()> {
        self.lock().read_page(group, page, bytes)
    }

    fn write_page(
        &mut self,
        group: usize,
        page: PageId,
        bytes: &[u8],
    ) -> lapidary::backend::Result<()> {
        self.lock().write_page(group, page, bytes)
    }

    fn trace(
        &mut self,
        call: &Call<'_>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> lapidary::backend::Result<()> {
        self.lock().trace(call, sink)
    }
}
