//! The ops that only towers have: images and audio made into soft rows.

use lapidary_backend_kit::{Derived, Form, axial_frequencies};
use lapidary_program::{AxialRopeSpec, Dim, Op, ValueId, ValueType};

use super::MethodCompiler;
use crate::ops::self_attention::Heads;
use crate::ops::{conv2d, local_attention};
use crate::simd::LANES;
use crate::step::{StepOp, Value};
use crate::weights::VectorId;

impl MethodCompiler<'_> {
    pub(super) fn resolve_tower(&mut self, op: &Op, inputs: &[Value]) -> StepOp {
        let n_rows = inputs[0].n_rows(self.planned.sizes);
        match op {
            Op::LayerNorm { weight, bias, eps, width: _ } => StepOp::LayerNorm {
                weight: self.out.weights.vector(weight),
                bias: bias.as_deref().map(|b| self.out.weights.vector(b)),
                eps: *eps,
            },
            Op::AxialRope(spec) => StepOp::AxialRope { head_dim: spec.head_dim as usize },
            Op::SelfAttention { n_heads, head_dim, scale } => {
                let (n_heads, head_dim) = (*n_heads as usize, *head_dim as usize);
                let heads = Heads { n_heads, head_dim, scale: *scale };
                self.need_per_call(heads.call_scratch(n_rows, self.planned.n_threads));
                self.need_per_thread(heads.tile_scratch(n_rows));
                StepOp::SelfAttention(heads)
            }
            Op::LocalAttention(spec) => {
                self.need_per_thread(local_attention::row_scratch(spec, n_rows));
                // No two rows of a call are further apart.
                let n = spec.window.min(self.method.max_chunk) as usize;
                let factors = Form::Factors { softplus: spec.softplus, factor: spec.q_scale };
                StepOp::LocalAttention {
                    factors: self.derived(&spec.per_dim_scale, factors),
                    by_distance: self.derived(&spec.relative, Form::Distances(n)),
                    spec: spec.clone(),
                }
            }
            Op::Conv2d { weight, width } => {
                let shape = &self.program.weights()[weight].shape;
                let (n_out, n_in) = (shape[0] as usize, shape[1] as usize);
                let width = *width as usize;
                self.need_per_thread(if n_rows == 0 {
                    0
                } else {
                    conv2d::row_scratch(width, n_in)
                });
                let panels = self.derived(weight, Form::KernelPanels(LANES));
                StepOp::Conv2d { panels, n_in, n_out, width }
            }
            Op::CausalConv1d { weight } => {
                StepOp::CausalConv1d { taps: self.derived(weight, Form::Transposed) }
            }
            Op::PoolRows { size } => StepOp::PoolRows { size: *size as usize },
            Op::SigmoidGate => StepOp::SigmoidGate,
            Op::Activate { function } => StepOp::Activate { function: *function },
            Op::Clamp { low, high } => StepOp::Clamp {
                low: self.out.weights.vector(low),
                high: self.out.weights.vector(high),
            },
            Op::Standardise { bias, scale } => StepOp::Standardise {
                bias: self.out.weights.vector(bias),
                scale: self.out.weights.vector(scale),
            },
            _ => unreachable!("{} is not of a tower", op.kind()),
        }
    }

    fn derived(&mut self, weight: &str, form: Form) -> VectorId {
        self.out.weights.derived(Derived::new(weight, form))
    }

    /// The table of an axial rope's angles, made where it is first needed and kept to the end.
    pub(super) fn axial_table(&mut self, spec: &AxialRopeSpec, places: [ValueId; 2]) -> Value {
        let key = (places[0], places[1], spec.head_dim, spec.theta.to_bits());
        if let Some(table) = self.axial_tables.get(&key) {
            return *table;
        }
        let inputs = places.map(|place| self.value(place));
        let channels = Dim::Fixed(u64::from(spec.head_dim));
        let table = self.take_floats(&ValueType::F32(vec![inputs[0].rows, channels]));
        self.axial_tables.insert(key, table);
        let op = StepOp::AxialRopeTable { frequencies: axial_frequencies(spec) };
        self.extra(op, inputs.to_vec(), table);
        table
    }
}
