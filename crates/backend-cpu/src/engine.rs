//! Walks the steps of a compiled method.

mod pages;
mod run;
mod tower;

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Abilities, Bound, Call, Engine, Error, Fed, LoadOptions, PageId, Precision, Result, Results,
    Ticket, Want, bind,
};
use lapidary_backend_kit::{Purposes, TicketData, Tickets, answer};
use lapidary_program::{Method, Program};

use crate::aligned::Aligned;
use crate::cache::Cache;
use crate::compile::Compiled;
use crate::matrix::{Activations, Cpu};
use crate::ops::attention::QueryTile;
use crate::simd::Isa;
use crate::step::{CompiledMethod, RoomShape, Value};
use crate::weights::Weights;
use crate::workers::Workers;
use run::{Operand, Run};

/// A packed program on this machine's cores.
pub(crate) struct CpuEngine {
    program: Arc<Program>,
    options: LoadOptions,
    isa: Isa,
    workers: Workers,
    weights: Weights,
    methods: BTreeMap<String, CompiledMethod>,
    caches: Vec<Cache>,
    room: Room,
    tickets: Tickets,
}

/// Buffers that all calls share.
struct Room {
    floats: Vec<Aligned<f32>>,
    ids: Vec<Vec<i32>>,
    scratch: Scratch,
}

/// What ops need besides their outputs.
#[derive(Default)]
struct Scratch {
    /// For each thread `per_thread` numbers.
    threads: Aligned<f32>,
    call: Aligned<f32>,
    activations: Activations,
    tiles: Vec<QueryTile>,
}

/// The numbers of one input.
enum Given<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
    /// What an earlier call made.
    Kept(TicketData),
}

/// Hears the node and the numbers of each `f32` value that is made.
type Sink<'a> = &'a mut dyn FnMut(usize, &[f32]);
/// Gets an output: its name, where it is, and its numbers.
type End<'a> = &'a mut dyn FnMut(&str, Value, Operand<'_>);

impl CpuEngine {
    pub(crate) fn new(
        program: Arc<Program>,
        options: LoadOptions,
        (isa, workers): (Isa, Workers),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let Compiled { methods, weights, caches, room } = Compiled::new(&program, &options);
        // Caches and buffers first: what does not fit should fail before minutes of packing.
        let caches = caches.into_iter().map(Cache::new).collect::<Result<_>>()?;
        let room = Room::new(&room, workers.n_threads())?;
        let weights = weights.load(&program, &workers, options.pack_cache.as_deref(), progress)?;
        let tickets = Tickets::default();
        Ok(CpuEngine { program, options, isa, workers, weights, methods, caches, room, tickets })
    }

    /// Runs the steps of a method. With a sink that is all of them, else those that a wanted output
    /// or a cache has need of; `end` gets the outputs that are wanted.
    fn walk(&mut self, call: &Call<'_>, mut sink: Option<Sink<'_>>, end: End<'_>) -> Result<()> {
        let Bound { sizes, feeds, spans, positions, horizons, .. } =
            bind(&self.program, call, &self.options)?;
        let method = self.methods.get(call.method).ok_or_else(|| Error::Feed {
            method: call.method.to_string(),
            what: "it is not among the methods that were loaded".to_string(),
        })?;
        let fed = self.given(self.program.method(call.method)?, call.method, feeds)?;
        let is_wanted = |name: &str| !matches!(call.want(name), Want::Skip);
        let purposes = match sink {
            Some(_) => Purposes::ALL,
            None => Purposes::wanted(method.outputs.iter().map(|(name, _)| is_wanted(name))),
        };
        let mut run = Run {
            program: &self.program,
            cpu: Cpu {
                isa: self.isa,
                workers: &self.workers,
                exact: self.options.precision == Precision::Exact,
                stop: call.stop,
            },
            weights: &self.weights,
            caches: &mut self.caches,
            room: &mut self.room,
            fed: &fed,
            sizes,
            spans,
            positions: &positions,
            horizons: &horizons,
            max_context: self.options.max_context,
        };
        for step in method.steps.iter().filter(|step| step.purposes.serves(purposes)) {
            run.step(step)?;
            // What a stopped call has left out must not be read, not even by the next step.
            if call.is_stopped() {
                return Err(Error::Stopped);
            }
            let (Some(sink), Some(node), Some(made)) =
                (sink.as_mut(), step.node, step.outputs.last())
            else {
                continue;
            };
            if let Operand::F32(data) = run.operand(*made) {
                sink(node, data);
            }
        }
        for (name, value) in method.outputs.iter().filter(|(name, _)| is_wanted(name)) {
            end(name, *value, run.operand(*value));
        }
        Ok(())
    }

    /// What the inputs of a method are fed with.
    fn given<'a>(
        &self,
        method: &Method,
        name: &str,
        feeds: Vec<Fed<'a>>,
    ) -> Result<Vec<Given<'a>>> {
        let inputs = method.graph.inputs.iter();
        inputs
            .zip(feeds)
            .map(|(input, fed)| {
                Ok(match fed {
                    Fed::F32(data) => Given::F32(data),
                    Fed::I32(data) => Given::I32(data),
                    Fed::Of(rows) => {
                        Given::Kept(self.tickets.feed(&self.program, (name, input), &rows)?)
                    }
                })
            })
            .collect()
    }
}

impl Engine for CpuEngine {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.options
    }

    fn describe(&self) -> String {
        let threads = crate::count_threads(self.workers.n_threads());
        format!("cpu · {:?} · {threads} · KV {}", self.isa, self.options.kv_type().name())
    }

    fn abilities(&self) -> Abilities {
        Abilities { max_top_k: usize::MAX, prefers_top_k: false, max_in_flight: 1 }
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let mut results = self.tickets.begin();
        let mut keep = Vec::new();
        self.walk(call, None, &mut |name, value, data| {
            let counted: Vec<f32>;
            let data = match data {
                Operand::F32(data) => data,
                Operand::I32(data) => {
                    counted = data.iter().map(|x| *x as f32).collect();
                    &counted
                }
            };
            match call.want(name) {
                Want::Keep => keep.push((name.to_string(), value.channels, data.to_vec())),
                want => answer(&mut results, (name, value.channels), data, &want),
            }
        })?;
        Ok(self.tickets.end(call, results, keep))
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        self.tickets.take(ticket, results).map(|()| true)
    }

    fn release(&mut self, ticket: Ticket) {
        self.tickets.release(ticket);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        pages::copy(&mut self.caches, group, pairs)
    }

    fn page_bytes(&self, group: usize) -> usize {
        pages::size_bytes(&self.caches, group)
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        pages::read(&self.caches, group, page, bytes)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        pages::write(&mut self.caches, group, page, bytes)
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.walk(call, Some(sink), &mut |_, _, _| {})
    }
}

impl Room {
    fn new(shape: &RoomShape, n_threads: usize) -> Result<Self> {
        let floats = shape.floats.lens(shape.planned);
        Ok(Room {
            floats: floats.map(Aligned::zeroed).collect::<Result<_>>()?,
            ids: shape.ids.lens(shape.planned).map(|n| vec![0; n]).collect(),
            scratch: Scratch {
                threads: Aligned::zeroed(shape.per_thread * n_threads)?,
                call: Aligned::zeroed(shape.per_call)?,
                activations: Activations::default(),
                tiles: Vec::new(),
            },
        })
    }
}
