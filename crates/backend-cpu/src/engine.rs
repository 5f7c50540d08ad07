//! Walks the steps of a compiled method.

mod tower;

use std::collections::BTreeMap;
use std::sync::Arc;

use lapidary_backend::{
    Engine, Error, Feed, FeedData, LoadOptions, Outputs, Precision, Result, Sizes, bind,
};
use lapidary_program::Program;

use crate::aligned::Aligned;
use crate::cache::Cache;
use crate::compile::Compiled;
use crate::matrix::{Activations, Cpu};
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
use crate::step::{CompiledMethod, Place, RoomShape, Step, StepOp, Value};
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
        let method = self.methods.get(name).ok_or_else(|| Error::Feed {
            method: name.to_string(),
            what: "it is not among the methods that were loaded".to_string(),
        })?;
        let mut call = Call {
            program: &self.program,
            cpu: Cpu {
                isa: self.isa,
                workers: &self.workers,
                exact: self.options.precision == Precision::Exact,
            },
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
        let threads = crate::count_threads(self.workers.n_threads());
        format!("cpu · {:?} · {threads} · KV {}", self.isa, self.options.kv_type().name())
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
            scratch: Scratch {
                threads: Aligned::zeroed(shape.per_thread * n_threads)?,
                call: Aligned::zeroed(shape.per_call)?,
                activations: Activations::default(),
                tiles: Vec::new(),
            },
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

    /// Does one step. Its output buffer and the scratch are taken out of the room meanwhile, so
    /// that the inputs, which are in other buffers, can be read.
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
        let mut scratch = std::mem::take(&mut self.room.scratch);
        // Grows when a call asks for more rows than planned, and after a panic lost the buffer.
        let done = taken.grow(len).and_then(|()| {
            let out = &mut taken[..len];
            match step.op {
                StepOp::Linear { .. } => self.multiply(step, &mut scratch, out),
                StepOp::Attention { .. } => self.attend(step, &mut scratch, out),
                StepOp::SelfAttention(_) => self.attend_to_all(step, &mut scratch, out),
                StepOp::LocalAttention { .. } => self.attend_nearby(step, &mut scratch, out),
                StepOp::Conv2d { .. } => self.convolve(step, &mut scratch, out),
                StepOp::Router { .. } => self.route(step, &mut scratch, out),
                StepOp::Experts { .. } => self.ask_experts(step, &mut scratch, out),
                StepOp::CentroidHead { .. } => self.head(step, &mut scratch, out),
                _ => self.compute(step, made, out),
            }
        });
        self.room.floats[buffer] = taken;
        self.room.scratch = scratch;
        done
    }

    fn kv_write(&mut self, step: &Step, cache: usize) {
        // Caches are apart from the room; borrow them by field.
        let caches = std::mem::take(&mut self.caches);
        let (k, v) = (self.f32(step, 0), self.f32(step, 1));
        kv_write(&mut caches[cache], k, v, self.i32(step, 2), self.i32(step, 3));
        self.caches = caches;
    }

    fn compute(&self, step: &Step, made: Value, out: &mut [f32]) -> Result<()> {
        let (cpu, weights) = (self.cpu, self.weights);
        let (f32, i32) = (|i| self.f32(step, i), |i| self.i32(step, i));
        let channels = |i: usize| step.inputs[i].channels;
        let first = || (!step.in_place).then(|| f32(0));
        match &step.op {
            StepOp::Embed { table, picked, soft_id } => {
                let table = weights.table(self.program, *table)?;
                let soft = soft_id.map(|id| (id, i32(1)));
                embed(cpu, &table, *picked, (i32(0), soft), (out, made.channels))?;
            }
            StepOp::SoftMerge => {
                soft_merge(cpu, first(), i32(1), f32(2), (out, made.channels));
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
            _ => self.compute_tower(step, made, out),
        }
        Ok(())
    }

    fn f32(&self, step: &Step, i: usize) -> &[f32] {
        self.operand(step.inputs[i]).f32()
    }

    fn i32(&self, step: &Step, i: usize) -> &[i32] {
        self.operand(step.inputs[i]).i32()
    }

    fn multiply(&self, step: &Step, scratch: &mut Scratch, out: &mut [f32]) -> Result<()> {
        let StepOp::Linear { matrix, bias } = &step.op else {
            unreachable!("a linear was asked for")
        };
        let bias = bias.map(|b| self.weights.vector(b));
        let matrix = self.weights.matrix(*matrix);
        matrix.matmul(self.cpu, 0, bias, self.f32(step, 0), &mut scratch.activations, out)
    }

    fn attend(&self, step: &Step, scratch: &mut Scratch, out: &mut [f32]) -> Result<()> {
        let StepOp::Attention { cache, spec, own_key_is_cached } = &step.op else {
            unreachable!("attention was asked for")
        };
        let cache = &self.caches[*cache];
        let queries = Queries {
            q: self.f32(step, 0),
            slots: self.i32(step, 1),
            positions: self.i32(step, 2),
            horizons: spec.bidirectional.then(|| self.i32(step, 3)),
            own_key_is_cached: *own_key_is_cached,
        };
        let per_thread = tile_scratch(spec.head_dim as usize);
        scratch.threads.grow(per_thread * self.cpu.workers.n_threads())?;
        scratch.call.grow(split_scratch(spec, cache.shape()))?;
        let room = AttentionRoom {
            scratch: &mut scratch.threads,
            split: &mut scratch.call,
            tiles: &mut scratch.tiles,
        };
        attention(self.cpu, spec, cache, queries, room, out);
        Ok(())
    }

    fn route(&mut self, step: &Step, scratch: &mut Scratch, out: &mut [f32]) -> Result<()> {
        let StepOp::Router { matrix, expert_scale, top_k } = &step.op else {
            unreachable!("a router was asked for")
        };
        let Place::Ids(buffer) = step.outputs[0].place else {
            unreachable!("the first value that a router makes is i32")
        };
        let rows = step.inputs[0].n_rows(self.sizes);
        let r = Router {
            weight: self.weights.matrix(*matrix),
            expert_scale: self.weights.vector(*expert_scale),
            top_k: *top_k,
        };
        scratch.call.grow(rows * r.expert_scale.len())?;
        let mut ids = std::mem::take(&mut self.room.ids[buffer]);
        ids.resize(ids.len().max(rows * top_k), 0);
        let made = (&mut ids[..rows * top_k], out);
        let room = (&mut *scratch.call, &mut scratch.activations);
        let done = router(self.cpu, &r, self.f32(step, 0), room, made);
        self.room.ids[buffer] = ids;
        done
    }

    fn ask_experts(&self, step: &Step, scratch: &mut Scratch, out: &mut [f32]) -> Result<()> {
        let StepOp::Experts { gate_up, down } = &step.op else {
            unreachable!("experts were asked for")
        };
        let (gate_up, down) = (self.weights.matrix(*gate_up), self.weights.matrix(*down));
        let per_token = scratch_per_token(gate_up.shape().cols, down.shape().cols);
        scratch.call.grow(step.inputs[0].n_rows(self.sizes) * per_token)?;
        let chosen = (self.i32(step, 1), self.f32(step, 2));
        let all = Experts { gate_up, down };
        let room = (&mut *scratch.call, &mut scratch.activations);
        experts(self.cpu, &all, self.f32(step, 0), chosen, room, out)
    }

    fn head(&self, step: &Step, scratch: &mut Scratch, out: &mut [f32]) -> Result<()> {
        let StepOp::CentroidHead { centroids, ordering, embedding, top } = &step.op else {
            unreachable!("a centroid head was asked for")
        };
        let head = CentroidHead {
            centroids: self.weights.matrix(*centroids),
            ordering: self.weights.ordering(*ordering),
            embedding: self.weights.table(self.program, *embedding)?,
            top: *top,
        };
        let rows = step.inputs[0].n_rows(self.sizes);
        scratch.call.grow(rows * head.centroids.shape().rows)?;
        let room = (&mut *scratch.call, &mut scratch.activations);
        centroid_head(self.cpu, &head, self.f32(step, 0), room, out)
    }
}
