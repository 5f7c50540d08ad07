//! The entry points.

use std::sync::Arc;

use lapidary_backend::Backend;
use lapidary_program::Program;

use crate::properties::Apart;
use crate::report::Report;
use crate::{graphs, models, ops, properties};

/// Kinds of ops that [`op`] knows: all of them.
pub const OPS: [&str; 29] = [
    "activate",
    "add",
    "attention",
    "axial_rope",
    "causal_conv1d",
    "centroid_head",
    "clamp",
    "concat",
    "conv2d",
    "embed",
    "experts",
    "gather_rows",
    "gelu_gate",
    "kv_write",
    "layer_norm",
    "linear",
    "local_attention",
    "pool_rows",
    "rms_norm",
    "rope",
    "router",
    "scale",
    "scale_by",
    "self_attention",
    "sigmoid_gate",
    "slice",
    "soft_cap",
    "soft_merge",
    "standardise",
];

/// Every op alone.
pub fn ops(backend: &dyn Backend) -> Report {
    OPS.iter().flat_map(|kind| op(backend, kind)).collect()
}

/// One op alone.
pub fn op(backend: &dyn Backend, kind: &str) -> Report {
    op_sampled(backend, kind, 1)
}

/// One op alone in every `step`-th of its cases, for a second look at a backend that is slow to
/// compile. Cases that differ in one thing stand side by side, in cycles of 5 or 8 for the ops that
/// have many; a `step` of 3 meets all of a cycle in turn.
pub fn op_sampled(backend: &dyn Backend, kind: &str, step: usize) -> Report {
    let cases = ops::cases(kind).into_iter().step_by(step);
    cases.flat_map(|case| crate::case::run(backend, kind, &case)).collect()
}

/// Random graphs of cheap ops.
pub fn graphs(backend: &dyn Backend) -> Report {
    graphs::cases().iter().flat_map(|case| crate::case::run(backend, "graphs", case)).collect()
}

/// What must hold for any program with a `forward` method, on a prompt of these tokens.
///
/// The prompt should be several times longer than the program's windows, and no longer than its
/// context.
pub fn properties(backend: &dyn Backend, program: Arc<Program>, tokens: &[i32]) -> Report {
    properties::check(backend, &program, tokens, Apart::A_LITTLE)
}

/// The same for a backend whose sums have no one order: it has other kernels for few tokens than for
/// many, and fuses ops where nobody looks.
pub fn unordered_properties(
    backend: &dyn Backend,
    program: Arc<Program>,
    tokens: &[i32],
) -> Report {
    properties::check(backend, &program, tokens, Apart::BY_ORDER)
}

/// The same for a backend that promises equal bits however a prompt is cut, batched or threaded.
pub fn exact_properties(backend: &dyn Backend, program: Arc<Program>, tokens: &[i32]) -> Report {
    properties::check(backend, &program, tokens, Apart::NEVER)
}

/// Small random decoders with a prompt each, to be given to [`properties`].
pub fn random_models() -> Vec<(Arc<Program>, Vec<i32>)> {
    models::all()
}
