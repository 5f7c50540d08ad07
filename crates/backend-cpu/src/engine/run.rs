//! One call: step by step, each op with its operands.

use lapidary_backend::{Result, Sizes, Span};
use lapidary_backend_kit::TicketData;
use lapidary_program::Program;

use super::{Given, Room, Scratch};
use crate::cache::Cache;
use crate::matrix::Cpu;
use crate::ops::attention::{
    Queries, Room as AttentionRoom, attention, split_scratch, tile_scratch,
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
use crate::step::{Place, Step, StepOp, Value};
use crate::weights::Weights;

/// The numbers of a value.
pub(super) enum Operand<'a> {
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
pub(super) struct Run<'a> {
    pub program: &'a Program,
    pub cpu: Cpu<'a>,
    pub weights: &'a Weights,
    pub caches: &'a mut [Cache],
    pub room: &'a mut Room,
    pub fed: &'a [Given<'a>],
    pub sizes: Sizes,
    /// Where the tokens stand.
    pub spans: &'a [Span<'a>],
    /// `[T]`.
    pub positions: &'a [i32],
    /// `[T]`.
    pub horizons: &'a [i32],
    pub max_context: u32,
}

impl Run<'_> {
    pub(super) fn operand(&self, value: Value) -> Operand<'_> {
        let len = value.len(self.sizes);
        match value.place {
            Place::Feed(i) => match &self.fed[i] {
                Given::F32(data) => Operand::F32(data),
                Given::I32(data) => Operand::I32(data),
                Given::Kept(TicketData::F32(data)) => Operand::F32(data),
                Given::Kept(TicketData::I32(data)) => Operand::I32(data),
            },
            Place::Floats(i) => Operand::F32(&self.room.floats[i][..len]),
            Place::Ids(i) => Operand::I32(&self.room.ids[i][..len]),
        }
    }

    /// Does one step. Its output buffer and the scratch are taken out of the room meanwhile, so
    /// that the inputs, which are in other buffers, can be read.
    pub(super) fn step(&mut self, step: &Step) -> Result<()> {
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
        kv_write(&mut caches[cache], k, v, self.spans);
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
            StepOp::RopeTable { frequencies } => rope_table(cpu, frequencies, self.positions, out),
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

    pub(super) fn f32(&self, step: &Step, i: usize) -> &[f32] {
        self.operand(step.inputs[i]).f32()
    }

    pub(super) fn i32(&self, step: &Step, i: usize) -> &[i32] {
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
        let StepOp::Attention { cache, spec } = &step.op else {
            unreachable!("attention was asked for")
        };
        let cache = &self.caches[*cache];
        let queries = Queries {
            q: self.f32(step, 0),
            spans: self.spans,
            positions: self.positions,
            horizons: self.horizons,
        };
        let per_thread = tile_scratch(spec.head_dim as usize);
        scratch.threads.grow(per_thread * self.cpu.workers.n_threads())?;
        scratch.call.grow(split_scratch(spec, self.max_context))?;
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
