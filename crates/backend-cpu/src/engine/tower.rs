//! Runs the ops that only towers have.

use lapidary_backend::Result;

use super::Scratch;
use super::run::Run;
use crate::ops::conv2d::{self, Conv2d, conv2d};
use crate::ops::layer_norm::{LayerNorm, layer_norm};
use crate::ops::local_attention::{self, LocalAttention, local_attention};
use crate::ops::self_attention::self_attention;
use crate::ops::{
    activate::activate,
    axial_rope::{axial_rope, axial_rope_table},
    causal_conv1d::causal_conv1d,
    clamp::clamp,
    pool_rows::pool_rows,
    sigmoid_gate::sigmoid_gate,
    standardise::standardise,
};
use crate::step::{Step, StepOp, Value};

impl Run<'_> {
    /// Ops that need no scratch.
    pub(super) fn compute_tower(&self, step: &Step, made: Value, out: &mut [f32]) {
        let (cpu, weights) = (self.cpu, self.weights);
        let (f32, i32) = (|i| self.f32(step, i), |i| self.i32(step, i));
        let first = || (!step.in_place).then(|| f32(0));
        match &step.op {
            StepOp::LayerNorm { weight, bias, eps } => {
                let (weight, bias) = (weights.vector(*weight), bias.map(|b| weights.vector(b)));
                let norm = LayerNorm { weight, bias, eps: *eps };
                layer_norm(cpu, first(), norm, (out, made.channels));
            }
            StepOp::AxialRopeTable { frequencies } => {
                axial_rope_table(cpu, frequencies, [i32(0), i32(1)], out);
            }
            StepOp::AxialRope { head_dim } => {
                axial_rope(cpu, first(), (f32(1), *head_dim), (out, made.channels));
            }
            StepOp::CausalConv1d { taps } => {
                causal_conv1d(cpu, f32(0), weights.vector(*taps), (out, made.channels));
            }
            StepOp::PoolRows { size } => pool_rows(cpu, f32(0), *size, (out, made.channels)),
            StepOp::SigmoidGate => sigmoid_gate(cpu, first(), f32(1), out),
            StepOp::Activate { function } => activate(cpu, first(), *function, out),
            StepOp::Clamp { low, high } => {
                let bounds = (weights.vector(*low)[0], weights.vector(*high)[0]);
                clamp(cpu, first(), bounds, out);
            }
            StepOp::Standardise { bias, scale } => {
                let by = (weights.vector(*bias), weights.vector(*scale));
                standardise(cpu, first(), by, out);
            }
            _ => unreachable!("done elsewhere"),
        }
    }

    pub(super) fn attend_to_all(
        &self,
        step: &Step,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<()> {
        let StepOp::SelfAttention(heads) = step.op else {
            unreachable!("self-attention was asked for")
        };
        let n_rows = step.inputs[0].n_rows(self.sizes);
        let n_threads = self.cpu.workers.n_threads();
        scratch.call.grow(heads.call_scratch(n_rows, n_threads))?;
        scratch.threads.grow(heads.tile_scratch(n_rows) * n_threads)?;
        let q = (!step.in_place).then(|| self.f32(step, 0));
        let qkv = (q, self.f32(step, 1), self.f32(step, 2));
        let room = (&mut *scratch.call, &mut *scratch.threads);
        self_attention(self.cpu, heads, qkv, room, out);
        Ok(())
    }

    pub(super) fn attend_nearby(
        &self,
        step: &Step,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<()> {
        let StepOp::LocalAttention { spec, factors, by_distance } = &step.op else {
            unreachable!("local attention was asked for")
        };
        let n_rows = step.inputs[0].n_rows(self.sizes);
        let per_thread = local_attention::row_scratch(spec, n_rows);
        scratch.threads.grow(per_thread * self.cpu.workers.n_threads())?;
        let local = LocalAttention {
            spec,
            factors: self.weights.vector(*factors),
            by_distance: self.weights.vector(*by_distance),
        };
        let q = (!step.in_place).then(|| self.f32(step, 0));
        let qkv = (q, self.f32(step, 1), self.f32(step, 2));
        local_attention(self.cpu, local, qkv, &mut scratch.threads, out);
        Ok(())
    }

    pub(super) fn convolve(
        &self,
        step: &Step,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<()> {
        let StepOp::Conv2d { panels, n_in, n_out, width } = step.op else {
            unreachable!("a convolution was asked for")
        };
        let per_thread = conv2d::row_scratch(width, n_in);
        scratch.threads.grow(per_thread * self.cpu.workers.n_threads())?;
        let conv = Conv2d { panels: self.weights.vector(panels), n_in, n_out, width };
        conv2d(self.cpu, conv, self.f32(step, 0), &mut scratch.threads, out);
        Ok(())
    }
}
