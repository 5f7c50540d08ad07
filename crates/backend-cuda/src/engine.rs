//! Runs compiled methods: feeds in, kernels in a stream, outputs back or kept.

pub(crate) mod feeds;
mod in_flight;
mod outputs;
mod replay;

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Abilities, Bound, Call, Engine, Error, Fed, LoadOptions, PageId, Result, Results, Sizes,
    Ticket, bind,
};
use lapidary_backend_kit::{Buffers, GroupTables, Purposes};
use lapidary_program::{Program, ValueType};

use self::feeds::FeedLayout;
use self::in_flight::{InFlight, Kept};
use self::outputs::{MOST_CANDIDATES, OutputUse, TopRoom};
use self::replay::{Replays, SHORT, Shape, round_keys};
use crate::cache::{self, Cache};
use crate::compile::{Compiled, CompiledMethod};
use crate::driver::{Event, Memory, Pinned, Stream, args};
use crate::gpu::Gpu;
use crate::ops::Work;
use crate::weights::{WeightPlan, Weights};

/// Calls that may be submitted before the first of them is waited for.
const IN_FLIGHT: usize = 2;

/// A program on a GPU.
pub(crate) struct CudaEngine {
    machine: Machine,
    options: LoadOptions,
    staging: Staging,
    in_flight: InFlight,
    replays: Replays,
}

/// What kernels run on.
struct Machine {
    /// Before all that its kernels use, so that it is waited for before that goes.
    stream: Stream,
    program: Arc<Program>,
    gpu: Arc<Gpu>,
    weights: Weights,
    caches: Vec<Cache>,
    groups: Vec<GroupTables>,
    methods: BTreeMap<String, CompiledMethod>,
    room: Room,
    weight_plan: WeightPlan,
}

/// Memory that calls work in, one after another.
struct Room {
    shape: Buffers,
    arena: Vec<Memory>,
    feeds: Memory,
    top: TopRoom,
}

/// Memory of the host that feeds are copied from, in turns.
struct Staging {
    slots: Vec<(Pinned, Event)>,
    turn: usize,
}

impl Staging {
    /// The next slot, with room for so many bytes and free to be written.
    fn next(&mut self, gpu: &Gpu, bytes: usize) -> Result<&mut (Pinned, Event)> {
        if self.slots.len() <= IN_FLIGHT {
            let slot = (Pinned::new(&gpu.context, bytes)?, Event::new(&gpu.context)?);
            self.slots.push(slot);
            self.turn = self.slots.len() - 1;
        } else {
            self.turn = (self.turn + 1) % self.slots.len();
        }
        let (pinned, event) = &mut self.slots[self.turn];
        event.wait()?;
        if pinned.len() < bytes {
            *pinned = Pinned::new(&gpu.context, bytes.next_power_of_two())?;
        }
        Ok(&mut self.slots[self.turn])
    }
}

impl Room {
    fn new(gpu: &Gpu, shape: Buffers, planned: Sizes) -> Result<Self> {
        let memory = |len: usize| Memory::new(&gpu.context, 4 * len);
        let arena = shape.lens(planned).map(memory).collect::<Result<_>>()?;
        let feeds = Memory::new(&gpu.context, 1 << 16)?;
        Ok(Room { shape, arena, feeds, top: TopRoom::default() })
    }

    /// Makes room for a call; whether memory has moved.
    fn make(
        &mut self,
        gpu: &Gpu,
        sizes: Sizes,
        feed_bytes: usize,
        uses: &[OutputUse],
    ) -> Result<bool> {
        let mut has_moved = false;
        for (memory, len) in self.arena.iter_mut().zip(self.shape.lens(sizes)) {
            has_moved |= grow(gpu, memory, 4 * len)?;
        }
        has_moved |= grow(gpu, &mut self.feeds, feed_bytes)?;
        Ok(has_moved | self.top.make(&gpu.context, uses)?)
    }
}

/// Makes memory larger if need be; what it held is lost. The driver waits for kernels that use it.
fn grow(gpu: &Gpu, memory: &mut Memory, bytes: usize) -> Result<bool> {
    if memory.bytes >= bytes {
        return Ok(false);
    }
    *memory = Memory::new(&gpu.context, 16)?;
    *memory = Memory::new(&gpu.context, bytes)?;
    Ok(true)
}

impl CudaEngine {
    pub(crate) fn new(
        program: Arc<Program>,
        options: LoadOptions,
        gpu: Arc<Gpu>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let compiled = Compiled::new(&program, &options, true, None);
        let stream = Stream::new(&gpu.context)?;
        // Caches first: what does not fit should fail before minutes of reading.
        let open = |shape: &crate::cache::CacheShape| shape.open(&gpu.context, &stream);
        let caches = compiled.caches.iter().map(open).collect::<Result<_>>()?;
        let room = Room::new(&gpu, compiled.arena, compiled.planned)?;
        let weights = compiled.weights.load(&program, &gpu, progress)?;
        let machine = Machine {
            stream,
            program,
            gpu,
            weights,
            caches,
            groups: compiled.groups,
            methods: compiled.methods,
            room,
            weight_plan: compiled.weights,
        };
        Ok(CudaEngine {
            machine,
            options,
            staging: Staging { slots: Vec::new(), turn: 0 },
            in_flight: InFlight::default(),
            replays: Replays::default(),
        })
    }

    /// Copies the feeds of a call to the device, and what earlier calls have kept to its place.
    fn feed(
        &mut self,
        call: &Call<'_>,
        bound: &Bound<'_>,
        layout: &FeedLayout,
        uses: &[OutputUse],
    ) -> Result<()> {
        let method = self.machine.program.method(call.method)?;
        let mut picks = Vec::new();
        for (i, fed) in bound.feeds.iter().enumerate() {
            let (Fed::Of(wanted), Some(rows)) = (fed, layout.picks[i]) else { continue };
            let input = &method.graph.inputs[i];
            let kept = self.in_flight.kept(wanted)?;
            let vocab = self.machine.program.metadata().vocab_size as usize;
            let fits = match &input.value_type {
                ValueType::I32(_) => kept.below.is_some_and(|below| below <= vocab),
                ValueType::F32(_) => {
                    kept.below.is_none() && kept.channels == input.value_type.channels()
                }
            };
            if !fits {
                let (output, name) = (wanted.output, &input.name);
                let what = format!("output `{output}` of an earlier call is no `{name}`");
                return Err(Error::Feed { method: call.method.to_string(), what });
            }
            picks.push((kept, rows, layout.inputs[i], wanted.rows.len()));
        }
        let (pinned, event) = self.staging.next(&self.machine.gpu, layout.bytes)?;
        let bytes = &mut pinned.bytes_mut()[..layout.bytes];
        layout.fill(bytes, (method, call), bound, &self.machine.groups, uses);
        let feeds = self.machine.room.feeds.at();
        self.machine.stream.upload(pinned, 0, feeds, layout.bytes)?;
        self.machine.stream.record(event)?;
        for (kept, rows, to, n_rows) in picks {
            let n = n_rows * kept.channels;
            let grid = ([n.div_ceil(256).min(1 << 16) as u32, 1, 1], 256, 0);
            let (rows, to) = (feeds + rows as u64, feeds + to as u64);
            let args = args![kept.memory.at(), rows, to, n, kept.channels as u32];
            self.machine.gpu.launch(&self.machine.stream, "pick_rows", grid, args)?;
        }
        Ok(())
    }

    /// Checks a call, makes room and feeds it.
    fn begin<'a>(
        &mut self,
        call: &Call<'a>,
        uses: impl FnOnce(&Machine, Sizes) -> Result<Vec<OutputUse>>,
    ) -> Result<(Bound<'a>, Vec<OutputUse>, FeedLayout)> {
        let program = self.machine.program.clone();
        let bound = bind(&program, call, &self.options)?;
        self.machine.gpu.context.enter()?;
        let method = program.method(call.method)?;
        let uses = uses(&self.machine, bound.sizes)?;
        let is_of: Vec<bool> = bound.feeds.iter().map(|f| matches!(f, Fed::Of(_))).collect();
        let both = (method, self.machine.compiled(call.method)?);
        let layout = FeedLayout::new(
            both,
            bound.sizes,
            bound.spans.len(),
            &self.machine.groups,
            &uses,
            &is_of,
        );
        let room = &mut self.machine.room;
        if room.make(&self.machine.gpu, bound.sizes, layout.bytes, &uses)? {
            self.replays.clear();
        }
        self.feed(call, &bound, &layout, &uses)?;
        Ok((bound, uses, layout))
    }
}

impl Machine {
    /// What becomes of the outputs of a call.
    fn uses(&self, call: &Call<'_>, sizes: Sizes) -> Result<Vec<OutputUse>> {
        let method = self.program.method(call.method)?;
        let compiled = self.compiled(call.method)?;
        let one = |out: &lapidary_program::Output| {
            let (rows, channels) = compiled.lens[out.value.index()];
            OutputUse::of(call, &out.name, (sizes.len(rows), channels))
        };
        method.graph.outputs.iter().map(one).collect()
    }

    fn compiled(&self, method: &str) -> Result<&CompiledMethod> {
        self.methods.get(method).ok_or_else(|| Error::Feed {
            method: method.to_string(),
            what: "it was not loaded".to_string(),
        })
    }

    fn work<'a>(
        &'a self,
        call: &Call<'_>,
        bound: &Bound<'_>,
        layout: &'a FeedLayout,
    ) -> Result<Work<'a>> {
        let last = bound.horizons.iter().chain(&bound.positions).max();
        Ok(Work {
            gpu: &self.gpu,
            stream: &self.stream,
            weights: &self.weights,
            caches: &self.caches,
            program: &self.program,
            method: self.program.method(call.method)?,
            compiled: self.compiled(call.method)?,
            arena: &self.room.arena,
            feeds: self.room.feeds.at(),
            layout,
            sizes: bound.sizes,
            most_keys: round_keys(last.map_or(0, |last| *last as usize + 1)),
        })
    }
}

impl Engine for CudaEngine {
    fn program(&self) -> &Arc<Program> {
        &self.machine.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        let found = &self.machine.gpu.context.found;
        let (major, minor) = found.capability;
        format!("cuda · {} · sm_{major}{minor}", found.name)
    }

    fn abilities(&self) -> Abilities {
        Abilities { max_top_k: MOST_CANDIDATES, prefers_top_k: true, max_in_flight: IN_FLIGHT }
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let (bound, uses, layout) = self.begin(call, |machine, sizes| machine.uses(call, sizes))?;
        let wanted = Purposes::wanted(uses.iter().map(|what| *what != OutputUse::Skip));
        let work = self.machine.work(call, &bound, &layout)?;
        let top = &self.machine.room.top;
        let body = || {
            work.ropes()?;
            for step in work.compiled.steps.iter().filter(|step| step.purposes.serves(wanted)) {
                if call.is_stopped() {
                    return Err(Error::Stopped);
                }
                work.step(step)?;
            }
            top.find(&work, &uses)
        };
        if !bound.positions.is_empty() && bound.sizes.tokens <= SHORT {
            let shape = Shape {
                method: call.method.to_string(),
                sizes: bound.sizes,
                n_spans: bound.spans.len(),
                uses: uses.clone(),
                is_of: bound.feeds.iter().map(|fed| matches!(fed, Fed::Of(_))).collect(),
                most_keys: work.most_keys,
            };
            self.replays.run(work.stream, shape, body)?;
        } else {
            body()?;
        }
        let (method, compiled) = (work.method, work.compiled);
        let lens = |value: usize| {
            let (rows, channels) = compiled.lens[value];
            (bound.sizes.len(rows), channels)
        };
        let (coming, bytes) = outputs::coming(method, &uses, lens);
        let mut kept = Vec::new();
        for (i, out) in method.graph.outputs.iter().enumerate() {
            let (rows, channels) = lens(out.value.index());
            let (from, channels, below) = match uses[i] {
                OutputUse::Keep => (work.at(out.value), channels, None),
                OutputUse::Top { draws: true, .. } => {
                    (self.machine.room.top.drawn(&uses, i), 1, Some(channels))
                }
                _ => continue,
            };
            let memory = self.in_flight.keep(&self.machine.gpu.context, 4 * rows * channels)?;
            work.stream.copy(from, memory.at(), 4 * rows * channels)?;
            kept.push((out.name.clone(), Kept { memory, rows, channels, below }));
        }
        let mut readback = match bytes {
            0 => None,
            bytes => Some(self.in_flight.readback(&self.machine.gpu.context, bytes)?),
        };
        if let Some(pinned) = &mut readback {
            outputs::bring(&work, &self.machine.room.top, &uses, &coming, pinned)?;
        }
        self.in_flight.add(&self.machine.stream, coming, readback, kept)
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        self.in_flight.take(ticket, results, false)
    }

    fn wait(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        self.in_flight.take(ticket, results, true).map(|_| ())
    }

    fn release(&mut self, ticket: Ticket) {
        self.in_flight.forget(ticket);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        self.machine.gpu.context.enter()?;
        cache::copy_pages(&self.machine.stream, &self.machine.caches, group, pairs)
    }

    fn page_bytes(&self, group: usize) -> usize {
        cache::page_bytes(&self.machine.caches, group)
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        self.machine.gpu.context.enter()?;
        cache::read_page(&self.machine.stream, &self.machine.caches, group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        self.machine.gpu.context.enter()?;
        cache::write_page(&self.machine.stream, &self.machine.caches, group, page, bytes)
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        // Every value is stored, in memory of its own methods.
        let machine = &mut self.machine;
        let plan = Some(machine.weight_plan.clone());
        let shown = Compiled::new(&machine.program, &self.options, false, plan);
        if shown.weights != machine.weight_plan {
            return Err(Error::Device("a trace asks for other weights".to_string()));
        }
        let room = Room::new(&machine.gpu, shown.arena, shown.planned)?;
        let methods = std::mem::replace(&mut machine.methods, shown.methods);
        let room = std::mem::replace(&mut machine.room, room);
        self.replays.clear();
        let done = self.show(call, sink);
        self.machine.methods = methods;
        let shown = std::mem::replace(&mut self.machine.room, room);
        self.machine.stream.wait()?;
        drop(shown);
        done
    }
}

impl CudaEngine {
    /// Runs a call node by node and shows what each makes.
    fn show(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let n_outputs = self.machine.compiled(call.method).map_or(0, |compiled| compiled.n_outputs);
        let none = |_: &Machine, _| Ok(vec![OutputUse::Skip; n_outputs]);
        let (bound, _, layout) = self.begin(call, none)?;
        let work = self.machine.work(call, &bound, &layout)?;
        work.ropes()?;
        let mut numbers = Vec::new();
        for step in &work.compiled.steps {
            work.step(step)?;
            let n_made = work.method.graph.nodes[step.node].op.n_outputs() as u32;
            for value in (step.makes.0..step.makes.0 + n_made).map(lapidary_program::ValueId) {
                if !matches!(work.method.types()[value.index()], ValueType::F32(_)) {
                    continue;
                }
                let n = work.rows(value) * work.channels(value);
                let mut pinned = Pinned::new(&self.machine.gpu.context, 4 * n)?;
                work.stream.download(work.at(value), &mut pinned, 0, 4 * n)?;
                work.stream.wait()?;
                numbers.clear();
                let words = pinned.bytes()[..4 * n].as_chunks::<4>().0;
                numbers.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
                sink(step.node, &numbers);
            }
        }
        Ok(())
    }
}
