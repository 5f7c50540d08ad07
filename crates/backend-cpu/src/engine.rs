//! Walks the steps of a compiled method.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{Engine, Feed, FeedData, LoadOptions, Outputs, Result, Sizes, bind};
use lapidary_program::Program;

use crate::aligned::Aligned;
use crate::cache::Cache;
use crate::compile::{Compiled, CompiledMethod, Place, RoomShape, Step, StepOp, Value};
use crate::matrix::Cpu;
use crate::ops::attention::{
    Queries, QueryTile, Room as AttentionRoom, attention, split_scratch, tile_scratch,
};
use crate::ops::centroid_head::{CentroidHead, centroid_head};
use crate::ops::experts::{Experts, experts, scratch_per_token};
use crate::ops::rms_norm::{RmsNorm, rms_norm};
use crate::ops::rope::{rope, rope_table};
use crate::ops::router::{Router, router};
use crate::ops::{
    add::add, concat::concat, embed::embed, gather_rows::gather_rows, gelu_gate::gelu_gate,
    kv_write::kv_write, scale::scale, scale_by::scale_by, slice::slice, soft_cap::soft_cap,
    soft_merge::soft_merge,
};
use crate::simd::Isa;
use crate::weights::Weights;
use crate::workers::Workers;

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
}

/// Buffers that all calls share.
struct Room {
    floats: Vec<Aligned<f32>>,
    ids: Vec<Vec<i32>>,
    /// For each thread `per_thread` numbers.
    threads: Aligned<f32>,
    call: Aligned<f32>,
    tiles: Vec<QueryTile>,
}

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
        let weights = weights.load(&program, &workers, progress)?;
        Ok(CpuEngine { program, options, isa, workers, weights, methods, caches, room })
    }

    /// Runs all steps of a method; `sink` is told the node and the numbers of each `f32` value,
    /// `end` gets where the outputs are.
    fn walk(
        &mut self,
        name: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
        end: &mut dyn FnMut(usize, &str, Value, Operand<'_>, Sizes),
    ) -> Result<()> {
        let (sizes, fed) = bind(&self.program, name, feeds, &self.options)?;
        let method = &self.methods[name];
        let mut call = Call {
            program: &self.program,
            cpu: Cpu { isa: self.isa, workers: &self.workers },
            weights: &self.weights,
            caches: &mut self.caches,
            room: &mut self.room,
            fed: &fed,
            sizes,
        };
        for step in &method.steps {
            call.step(step)?;
            let (Some(node), Some(made)) = (step.node, step.outputs.last()) else { continue };
            if let Operand::F32(data) = call.operand(*made) {
                sink(node, data);
            }
        }
        for (i, (name, value)) in method.outputs.iter().enumerate() {
            end(i, name, *value, call.operand(*value), sizes);
        }
        Ok(())
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
        format!("cpu · {:?} · {}", self.isa, crate::count_threads(self.workers.n_threads()))
    }

    fn run(&mut self, method: &str, feeds: &[Feed<'_>], outputs: &mut Outputs) -> Result<()> {
        let mut n_outputs = 0;
        self.walk(method, feeds, &mut |_, _| {}, &mut |i, name, value, data, sizes| {
            let out = outputs.prepare(i, name, value.n_rows(sizes), value.channels);
            match data {
                Operand::F32(data) => out.copy_from_slice(data),
                Operand::I32(data) => {
                    out.iter_mut().zip(data).for_each(|(o, x)| *o = *x as f32);
                }
            }
            n_outputs = i + 1;
        })?;
        outputs.truncate(n_outputs);
        Ok(())
    }

    fn trace(
        &mut self,
        method: &str,
        feeds: &[Feed<'_>],
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        self.walk(method, feeds, sink, &mut |_, _, _, _, _| {})
    }
}

impl Room {
    fn new(shape: &RoomShape, n_threads: usize) -> Result<Self> {
        Ok(Room {
            floats: shape.floats.iter().map(|n| Aligned::zeroed(*n)).collect::<Result<_>>()?,
            ids: shape.ids.iter().map(|n| vec![0; *n]).collect(),
            threads: Aligned::zeroed(shape.per_thread * n_threads)?,
            call: Aligned::zeroed(shape.per_call)?,
            tiles: Vec::new(),
        })
    }
}

/// The numbers of a value.
enum Operand<'a> {
    F32(&'a [f32]),
    I32(&'a [i32]),
}

impl<'a> Operand<'a> {
    fn f32(self) -> &'a [f32] {
        match self {
            Operand::F32(data) => data,
            Operand::I32(_) => unreachable!("validation typed this value as f32"),
        }
    }

    fn i32(self) -> &'a [i32] {
        match self {
            Operand::I32(data) => data,
            Operand::F32(_) => unreachable!("validation typed this value as i32"),
        }
    }
}

/// One run of a method.
struct Call<'a> {
    program: &'a Program,
    cpu: Cpu<'a>,
    weights: &'a Weights,
    caches: &'a mut [Cache],
    room: &'a mut Room,
    fed: &'a [FeedData<'a>],
    sizes: Sizes,
}

impl Call<'_> {
    fn operand(&self, value: Value) -> Operand<'_> {
        let len = value.len(self.sizes);
        match value.place {
            Place::Feed(i) => match self.fed[i] {
                FeedData::F32(data) => Operand::F32(data),
                FeedData::I32(data) => Operand::I32(data),
            },
            Place::Floats(i) => Operand::F32(&self.room.floats[i][..len]),
            Place::Ids(i) => Operand::I32(&self.room.ids[i][..len]),
        }
    }

    /// Does one step. Its output buffer is taken out of the room meanwhile, so that the inputs,
    /// which are in other buffers, can be read.
    fn step(&mut self, step: &Step) -> Result<()> {
        if let StepOp::KvWrite { cache } = step.op {
            self.kv_write(step, cache);
            return Ok(());
        }
        let made = *step.outputs.last().expect("every op but kv_write makes a value");
        let Place::Floats(buffer) = made.place else {
            unreachable!("the last value that an op makes is f32")
        };
        let len = made.len(self.sizes);
        let mut taken = std::mem::take(&mut self.room.floats[buffer]);
        // Grows when a call asks for more rows than planned, and after a panic lost the buffer.
        let done = taken.grow(len).and_then(|()| match step.op {
            StepOp::Attention { .. }
            | StepOp::Router { .. }
            | StepOp::Experts { .. }
            | StepOp::CentroidHead { .. } => self.compute_with_scratch(step, &mut taken[..len]),
            _ => self.compute(step, made, &mut taken[..len]),
        });
        self.room.floats[buffer] = taken;
        done
    }

    fn kv_write(&mut self, step: &Step, cache: usize) {
        // Caches are apart from the room; borrow them by field.
        let caches = std::mem::take(&mut self.caches);
        let i32 = |i: usize| self.operand(step.inputs[i]).i32();
        let (k, v) = (self.operand(step.inputs[0]).f32(), self.operand(step.inputs[1]).f32());
        kv_write(&mut caches[cache], k, v, i32(2), i32(3));
        self.caches = caches;
    }

    fn compute(&self, step: &Step, made: Value, out: &mut [f32]) -> Result<()> {
        let (cpu, weights) = (self.cpu, self.weights);
        let f32 = |i: usize| self.operand(step.inputs[i]).f32();
        let i32 = |i: usize| self.operand(step.inputs[i]).i32();
        let channels = |i: usize| step.inputs[i].channels;
        let first = || (!step.in_place).then(|| f32(0));
        match &step.op {
            StepOp::Embed { table, scale, soft_id } => {
                let table = weights.table(self.program, *table)?;
                let soft = soft_id.map(|id| (id, i32(1)));
                embed(cpu, &table, *scale, (i32(0), soft), (out, made.channels));
            }
            StepOp::SoftMerge => {
                soft_merge(cpu, first(), i32(1), f32(2), (out, made.channels));
            }
            StepOp::Linear { matrix, bias } => {
                let bias = bias.map(|b| weights.vector(b));
                weights.matrix(*matrix).matmul(cpu, 0, bias, f32(0), out);
            }
            StepOp::RmsNorm { weight, eps, offset, width } => {
                let weight = weight.map(|w| weights.vector(w));
                let norm = RmsNorm { weight, eps: *eps, offset: *offset, width: *width };
                rms_norm(cpu, first(), norm, (out, made.channels));
            }
            StepOp::RopeTable { frequencies } => rope_table(cpu, frequencies, i32(0), out),
            StepOp::Rope { head_dim, pairs } => {
                rope(cpu, first(), (f32(1), *pairs), *head_dim, (out, made.channels));
            }
            StepOp::GeluGate => gelu_gate(cpu, first(), f32(1), out),
            StepOp::Add => add(cpu, first(), f32(1), out),
            StepOp::Scale { factor } => scale(cpu, first(), *factor, out),
            StepOp::ScaleBy { weight } => {
                scale_by(cpu, first(), weights.vector(*weight), made.channels, out);
            }
            StepOp::SoftCap { cap } => soft_cap(cpu, first(), *cap, out),
            StepOp::Slice { start, len } => slice(cpu, f32(0), channels(0), (*start, *len), out),
            StepOp::Concat => concat(cpu, (f32(0), channels(0)), (f32(1), channels(1)), out),
            StepOp::GatherRows => gather_rows(cpu, f32(0), channels(0), i32(1), out),
            _ => unreachable!("done elsewhere"),
        }
        Ok(())
    }

    /// The ops that need more room than their output.
    fn compute_with_scratch(&mut self, step: &Step, out: &mut [f32]) -> Result<()> {
        let (cpu, weights) = (self.cpu, self.weights);
        // Taken out like the output buffer and given back below; `grow` does nothing unless a
        // panic lost them or a call has more rows than planned.
        let mut scratch = std::mem::take(&mut self.room.call);
        let mut threads = std::mem::take(&mut self.room.threads);
        let mut tiles = std::mem::take(&mut self.room.tiles);
        let mut ids = match step.outputs.first().map(|value| value.place) {
            Some(Place::Ids(buffer)) => std::mem::take(&mut self.room.ids[buffer]),
            _ => Vec::new(),
        };
        let rows = step.inputs[0].n_rows(self.sizes);
        let f32 = |i: usize| self.operand(step.inputs[i]).f32();
        let i32 = |i: usize| self.operand(step.inputs[i]).i32();
        let compute = || -> Result<()> {
            match &step.op {
                StepOp::Attention { cache, spec, own_key_is_cached } => {
                    let queries = Queries {
                        q: f32(0),
                        slots: i32(1),
                        positions: i32(2),
                        horizons: spec.bidirectional.then(|| i32(3)),
                        own_key_is_cached: *own_key_is_cached,
                    };
                    let cache = &self.caches[*cache];
                    let per_thread = tile_scratch(spec.head_dim as usize);
                    threads.grow(per_thread * cpu.workers.n_threads())?;
                    scratch.grow(split_scratch(spec, cache.shape()))?;
                    let room = AttentionRoom {
                        scratch: &mut threads,
                        split: &mut scratch,
                        tiles: &mut tiles,
                    };
                    attention(cpu, spec, cache, queries, room, out);
                }
                StepOp::Router { matrix, expert_scale, top_k } => {
                    let expert_scale = weights.vector(*expert_scale);
                    scratch.grow(rows * expert_scale.len())?;
                    ids.resize(ids.len().max(rows * top_k), 0);
                    let weight = weights.matrix(*matrix);
                    let made = (&mut ids[..rows * top_k], out);
                    let r = Router { weight, expert_scale, top_k: *top_k };
                    router(cpu, &r, f32(0), &mut scratch, made);
                }
                StepOp::Experts { gate_up, down } => {
                    let (gate_up, down) = (weights.matrix(*gate_up), weights.matrix(*down));
                    let per_token = scratch_per_token(gate_up.shape().cols, down.shape().cols);
                    scratch.grow(rows * per_token)?;
                    let chosen = (i32(1), f32(2));
                    experts(cpu, &Experts { gate_up, down }, f32(0), chosen, &mut scratch, out);
                }
                StepOp::CentroidHead { centroids, ordering, embedding, top } => {
                    let head = CentroidHead {
                        centroids: weights.matrix(*centroids),
                        ordering: weights.ordering(*ordering),
                        embedding: weights.table(self.program, *embedding)?,
                        top: *top,
                    };
                    scratch.grow(rows * head.centroids.shape().rows)?;
                    centroid_head(cpu, &head, f32(0), &mut scratch, out);
                }
                _ => unreachable!("needs no scratch"),
            }
            Ok(())
        };
        let done = compute();
        if let Some(Place::Ids(buffer)) = step.outputs.first().map(|value| value.place) {
            self.room.ids[buffer] = ids;
        }
        self.room.call = scratch;
        self.room.threads = threads;
        self.room.tiles = tiles;
        done
    }
}
