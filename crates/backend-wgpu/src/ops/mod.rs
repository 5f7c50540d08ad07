//! Ops as kernels, one file per op; the WGSL of the same stem is in `shaders/`.

mod activate;
mod add;
pub(crate) mod attention;
pub(crate) mod attention_few;
pub(crate) mod attention_many;
pub(crate) mod attention_one;
mod axial_rope;
mod causal_conv1d;
mod centroid_head;
mod clamp;
mod concat;
mod conv2d;
mod embed;
mod experts;
mod gather_rows;
pub(crate) mod gelu_gate;
pub(crate) mod heads;
mod kernel;
mod kv_write;
mod layer_norm;
mod linear;
mod local_attention;
mod pool_rows;
pub(crate) mod residual;
pub(crate) mod rms_norm;
pub(crate) mod rope;
mod router;
mod rows;
mod scale;
mod scale_by;
mod self_attention;
mod sigmoid_gate;
mod slice;
mod soft_cap;
mod soft_merge;
mod standardise;

use lapidary_program::{Op, ValueId};

use crate::compile::MethodCompiler;
use crate::step::{Keys, Value};

/// Adds the kernels of a node. `ids` are the numbers of its inputs.
pub(crate) fn compile(
    cx: &mut MethodCompiler<'_>,
    op: &Op,
    ids: &[ValueId],
    x: &[Value],
    y: &[Value],
) {
    match op {
        Op::Embed { weight, scale, start, stride, soft_id } => {
            // What the host feeds has no kernel.
            if y[0].buffer().is_some() {
                let rows = embed::Rows { scale: *scale, start: *start, stride: *stride };
                embed::embed(cx, weight, rows, *soft_id, x, y[0]);
            }
        }
        Op::KvWrite { state } => kv_write::kv_write(cx, state, x),
        Op::Router { weight, expert_scale, top_k } => {
            router::router(cx, [weight, expert_scale], *top_k, x[0], y);
        }
        Op::Rope(spec) => rope::rope(cx, spec, x[0], y[0]),
        Op::AxialRope(spec) => {
            axial_rope::axial_rope(cx, spec, [ids[1].index(), ids[2].index()], x[0], y[0]);
        }
        Op::Linear { weight, bias } => linear::linear(cx, weight, bias.as_deref(), x[0], y[0]),
        Op::Attention { state, spec } => {
            attention::attention(cx, state, spec, x[0], y[0], Keys::Any);
        }
        Op::SelfAttention { n_heads, head_dim, scale } => {
            self_attention::self_attention(cx, (*n_heads, *head_dim), *scale, x, y[0]);
        }
        Op::LocalAttention(spec) => local_attention::local_attention(cx, spec, x, y[0]),
        Op::Experts { gate_up, down } => experts::experts(cx, [gate_up, down], x, y[0]),
        Op::CentroidHead { centroids, ordering, embedding, top } => {
            let weights = [centroids.as_str(), ordering, embedding];
            centroid_head::centroid_head(cx, weights, *top, x[0], y[0]);
        }
        _ => compile_rows(cx, op, x, y[0]),
    }
}

pub(crate) use linear::{Gate, linears, most_few, takes_bytes};

/// Adds the kernel of an op that goes over elements or rows.
fn compile_rows(cx: &mut MethodCompiler<'_>, op: &Op, x: &[Value], y: Value) {
    match op {
        Op::SoftMerge => soft_merge::soft_merge(cx, x, y),
        Op::RmsNorm { .. } => rms_norm::rms_norm(cx, op, None, x[0], y, Keys::Any),
        Op::LayerNorm { weight, bias, eps, width } => {
            layer_norm::layer_norm(cx, (weight, bias.as_deref()), *eps, *width, x[0], y);
        }
        Op::Conv2d { weight, width } => conv2d::conv2d(cx, weight, *width, x[0], y),
        Op::CausalConv1d { weight } => causal_conv1d::causal_conv1d(cx, weight, x[0], y),
        Op::PoolRows { size } => pool_rows::pool_rows(cx, *size, x[0], y),
        Op::GeluGate => gelu_gate::gelu_gate(cx, x[0], (x[1], 0), y),
        Op::SigmoidGate => sigmoid_gate::sigmoid_gate(cx, x, y),
        Op::Activate { function } => activate::activate(cx, *function, x[0], y),
        Op::Clamp { low, high } => clamp::clamp(cx, [low, high], x[0], y),
        Op::Standardise { bias, scale } => standardise::standardise(cx, [bias, scale], x[0], y),
        Op::Add => add::add(cx, x, y),
        Op::Scale { factor } => scale::scale(cx, *factor, x[0], y),
        Op::ScaleBy { weight } => scale_by::scale_by(cx, weight, x[0], y),
        Op::SoftCap { cap } => soft_cap::soft_cap(cx, *cap, x[0], y),
        Op::Slice { start, .. } => slice::slice(cx, *start, x[0], y),
        Op::Concat => concat::concat(cx, x, y),
        Op::GatherRows => gather_rows::gather_rows(cx, x, y),
        _ => unreachable!("{} is compiled elsewhere", op.kind()),
    }
}
