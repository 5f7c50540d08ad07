//! Engines under test, and what they were asked to do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lapidary_backend::{
    Abilities, Backend, Call, Engine, LoadOptions, PageId, Precision, Result, Results, Ticket,
};
use lapidary_conformance::{harness, limits, load, with_pages};
use lapidary_gemma::OpenOptions;
use lapidary_mock_engine::{Mock, VirtualClock};
use lapidary_program::{Program, method};

/// What properties run on.
pub struct On {
    pub name: &'static str,
    pub kind: Kind,
    pub sizes: Sizes,
    /// How far log-probabilities may be apart that should be the same.
    pub tolerance: f32,
    /// Engines that serve every property, where each takes long to load.
    pub kept: Option<&'static Kept>,
}

/// Engines with room for everything, one for each use. Properties that take them in turns see only
/// the room that they ask for.
pub struct Kept {
    pub room: Room,
    engines: Mutex<BTreeMap<Use, Shared>>,
    turn: Mutex<()>,
}

/// Who uses an engine: two runners must not write the pages of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// The runner under test.
    Tested,
    /// What it is compared with.
    Fresh,
    /// A process that starts later.
    Restarted,
}

type Shared = Arc<Mutex<Box<dyn Engine>>>;

impl Kept {
    pub const fn new(room: Room) -> Self {
        Kept { room, engines: Mutex::new(BTreeMap::new()), turn: Mutex::new(()) }
    }
}

pub enum Kind {
    Mock,
    Backend(&'static dyn Backend, fn() -> Arc<Program>),
}

/// Tokens, sequences and repetitions of properties.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// A prefix that many share, and what each has of its own.
    pub prefix: usize,
    pub own: usize,
    /// A history after which an answer is asked for again.
    pub history: usize,
    /// A question, what is thought of it, and what is said then.
    pub question: usize,
    pub thinking: usize,
    pub after: usize,
    /// A prompt that comes while others are being answered, and the step before which it does: by
    /// then it is known what a step takes.
    pub long: usize,
    pub arrives: usize,
    /// So many sequences, how many whole ones the pool has pages for, and what they have in common.
    pub crowd: usize,
    pub room_for: usize,
    pub common: usize,
    /// Tokens of answers.
    pub answer: usize,
    /// Tokens of a text, and where forks part from it.
    pub trunk: usize,
    pub forks: &'static [usize],
    /// Lengths of prefixes that are saved.
    pub saved: &'static [usize],
    /// Random operations, and lengths of the prompts that they submit.
    pub operations: usize,
    pub lengths: &'static [usize],
    /// One in so many answers is compared with a fresh run.
    pub check_each: usize,
}

/// What an engine is loaded for.
#[derive(Clone, Copy)]
pub struct Room {
    pub context: usize,
    pub chunk: u32,
    pub sequences: u32,
    /// Pages of each pool; as many as all sequences need if that is not said.
    pub pages: Option<u32>,
}

impl Room {
    /// For one sequence at a time.
    pub fn one(context: usize) -> Self {
        Room { context, chunk: 256, sequences: 1, pages: None }
    }

    /// Options of an engine with at least this room, as if it had no more.
    fn within(&self, options: &LoadOptions) -> LoadOptions {
        let mut options = options.clone();
        options.max_context = options.max_context.min(self.context as u32);
        options.n_sequences = options.n_sequences.min(self.sequences);
        let chunk = options.limits.chunk.min(self.chunk);
        options.limits = limits(chunk as usize, options.n_sequences);
        if let Some(pages) = self.pages {
            options.pages.iter_mut().for_each(|n| *n = pages.min(*n));
        }
        options
    }
}

impl On {
    /// Why there is none here, if so.
    pub fn absent(&self) -> Option<String> {
        match self.kind {
            Kind::Mock => None,
            Kind::Backend(backend, _) => harness::absence(backend),
        }
    }

    /// Waits until no other property uses the same engines.
    pub fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.kept.map(|kept| locked(&kept.turn))
    }

    /// An engine, and what will tell what it was asked to do.
    pub fn engine(&self, room: Room, used: Use) -> (Box<dyn Engine>, Meter) {
        let mut meter = Meter::default();
        let engine = match (&self.kind, self.kept) {
            (Kind::Mock, _) => {
                let mock = mock(room);
                meter.mock = Some(mock.clone());
                Arc::new(Mutex::new(mock.engine()))
            }
            (Kind::Backend(backend, program), None) => loaded(*backend, &program(), room),
            (Kind::Backend(backend, program), Some(kept)) => {
                let mut engines = locked(&kept.engines);
                let new = || loaded(*backend, &program(), kept.room);
                engines.entry(used).or_insert_with(new).clone()
            }
        };
        let (program, options) = {
            let engine = locked(&engine);
            (engine.program().clone(), room.within(engine.options()))
        };
        let (under_way, meter_of_engine) = (BTreeMap::new(), meter.clone());
        let metered = Metered { engine, program, options, meter: meter_of_engine, under_way };
        (Box::new(metered), meter)
    }
}

fn mock(room: Room) -> Mock {
    let windows = vec![None, Some(256)];
    let mock = Mock { windows, vocab_size: 256, ..Mock::default() };
    let mock = mock.sized(room.context as u32, room.chunk, room.sequences);
    match room.pages {
        Some(pages) => mock.with_pages(pages),
        None => mock,
    }
}

fn loaded(backend: &dyn Backend, program: &Program, room: Room) -> Shared {
    let program = longer(program, room.context as u32);
    let options = LoadOptions {
        max_context: room.context as u32,
        n_sequences: room.sequences,
        limits: limits(room.chunk as usize, room.sequences),
        precision: Precision::Exact,
        methods: vec![method::FORWARD.into()],
        ..LoadOptions::default()
    };
    let mut options = with_pages(&program, &options);
    if let Some(pages) = room.pages {
        options.pages.fill(pages);
    }
    Arc::new(Mutex::new(load(backend, &program, &options).unwrap()))
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn pebble() -> Arc<Program> {
    static PEBBLE: OnceLock<Arc<Program>> = OnceLock::new();
    PEBBLE.get_or_init(|| Arc::new(lapidary_pebble::open().unwrap())).clone()
}

pub fn tiny() -> Arc<Program> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny/gemma4_text_e");
    Arc::new(lapidary_gemma::open(&folder, &OpenOptions::default()).unwrap())
}

/// The same weights for at least so many positions. What they say there means little, but it depends
/// on every key as it does anywhere.
fn longer(program: &Program, context: u32) -> Arc<Program> {
    let mut description = program.description().clone();
    let own = &mut description.metadata.max_context_len;
    *own = context.max(*own);
    let (blobs, store) = (program.blobs().clone(), program.store().clone());
    Arc::new(Program::new(description, blobs, store).unwrap())
}

/// What an engine was asked to do, and the time that this should take.
#[derive(Clone, Default)]
pub struct Meter {
    counts: Arc<Mutex<Counts>>,
    pub clock: VirtualClock,
    mock: Option<Mock>,
}

#[derive(Default)]
pub struct Counts {
    /// Tokens of each call.
    pub calls: Vec<usize>,
    pub copied: usize,
    /// What work takes.
    pub cost: WorkCost,
    /// When the last call ends.
    end: Duration,
}

/// The time of a call is that of its work, which is counted, so it does not depend on the machine
/// that runs the test.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkCost {
    /// Of a call.
    pub call: Duration,
    /// Of a token.
    pub token: Duration,
    /// Of a thousand keys that a token sees.
    pub thousand_keys: Duration,
}

impl Meter {
    pub fn counts(&self) -> MutexGuard<'_, Counts> {
        locked(&self.counts)
    }

    /// Tokens that were run since this was last asked.
    pub fn take_tokens(&self) -> usize {
        std::mem::take(&mut self.counts().calls).iter().sum()
    }

    /// Keys that the mock looked for and did not find in their place; other engines can't tell.
    pub fn stale(&self) -> usize {
        self.mock.as_ref().map_or(0, |mock| mock.log().stale)
    }
}

/// Counts the work of an engine, and shows as much room of it as was asked for.
struct Metered {
    engine: Shared,
    program: Arc<Program>,
    options: LoadOptions,
    meter: Meter,
    /// When calls end that were not waited for yet.
    under_way: BTreeMap<Ticket, Duration>,
}

impl Metered {
    /// Notes a call; says when it ends: after those before it.
    fn note(&mut self, call: &Call<'_>) -> Duration {
        let tokens: usize = call.spans.iter().map(|span| span.len as usize).sum();
        let mut keys = 0;
        for span in call.spans {
            let (start, end) = (span.start as usize, (span.start + span.len) as usize);
            for group in self.program.kv_groups() {
                let window = group.window.map_or(usize::MAX, |window| window as usize);
                keys += (start..end).map(|p| (p + 1).min(window)).sum::<usize>();
            }
        }
        let now = self.meter.clock.now();
        let mut counts = self.meter.counts();
        counts.calls.push(tokens);
        let WorkCost { call, token, thousand_keys } = counts.cost;
        let took = call + token * tokens as u32 + thousand_keys.mul_f64(keys as f64 / 1000.0);
        counts.end = now.max(counts.end) + took;
        counts.end
    }

    fn ended(&mut self, ticket: Ticket) {
        if let Some(end) = self.under_way.remove(&ticket) {
            self.meter.clock.advance_to(end);
        }
    }
}

impl Engine for Metered {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        locked(&self.engine).describe()
    }

    fn abilities(&self) -> Abilities {
        locked(&self.engine).abilities()
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let ticket = locked(&self.engine).submit(call)?;
        let end = self.note(call);
        self.under_way.insert(ticket, end);
        Ok(ticket)
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        let done = locked(&self.engine).poll(ticket, results)?;
        if done {
            self.ended(ticket);
        }
        Ok(done)
    }

    fn wait(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        locked(&self.engine).wait(ticket, results)?;
        self.ended(ticket);
        Ok(())
    }

    fn release(&mut self, ticket: Ticket) {
        self.under_way.remove(&ticket);
        locked(&self.engine).release(ticket);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        self.meter.counts().copied += pairs.len();
        locked(&self.engine).copy_pages(group, pairs)
    }

    fn page_layout(&self) -> String {
        locked(&self.engine).page_layout()
    }

    fn page_bytes(&self, group: usize) -> usize {
        locked(&self.engine).page_bytes(group)
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        locked(&self.engine).read_page(group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        locked(&self.engine).write_page(group, page, bytes)
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        locked(&self.engine).trace(call, sink)
    }
}
