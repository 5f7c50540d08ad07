//! The kernels around the matrix products, one file per op, of the same stem as the op's meaning
//! in `reference`.
//!
//! Ops that can work in place take `first: Option<&[f32]>`: their first operand, or `None` when
//! `out` already holds it.
//! Every row of a result is computed from its own inputs in one fixed order, so that it does not
//! depend on the other rows of the call.

pub(crate) mod activate;
pub(crate) mod add;
pub(crate) mod attention;
pub(crate) mod axial_rope;
pub(crate) mod causal_conv1d;
pub(crate) mod centroid_head;
pub(crate) mod clamp;
pub(crate) mod concat;
pub(crate) mod conv2d;
pub(crate) mod embed;
pub(crate) mod experts;
pub(crate) mod gather_rows;
pub(crate) mod gelu_gate;
pub(crate) mod kv_write;
pub(crate) mod layer_norm;
pub(crate) mod local_attention;
pub(crate) mod pool_rows;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod router;
pub(crate) mod scale;
pub(crate) mod scale_by;
pub(crate) mod self_attention;
pub(crate) mod sigmoid_gate;
pub(crate) mod slice;
pub(crate) mod soft_cap;
pub(crate) mod soft_merge;
pub(crate) mod standardise;

/// Puts the first operand's part into `out`, unless it is there.
fn begin(first: Option<&[f32]>, start: usize, out: &mut [f32]) {
    if let Some(first) = first {
        out.copy_from_slice(&first[start..start + out.len()]);
    }
}
