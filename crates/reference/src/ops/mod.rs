//! The meaning of each op, one file per op, over plain slices.
//!
//! Activations are `[length, channels]`, row after row. Shapes were checked when the program was
//! validated and indices when the feeds were bound; out-of-range ones panic here.

mod activate;
mod add;
mod attention;
mod axial_rope;
mod causal_conv1d;
mod centroid_head;
mod clamp;
mod concat;
mod conv2d;
mod embed;
mod experts;
mod gather_rows;
mod gelu_gate;
mod kv_write;
mod layer_norm;
mod linear;
mod local_attention;
mod pool_rows;
mod rms_norm;
mod rope;
mod router;
mod scale;
mod scale_by;
mod self_attention;
mod sigmoid_gate;
mod slice;
mod soft_cap;
mod soft_merge;
mod standardise;

pub(crate) use activate::activate;
pub(crate) use add::add;
pub(crate) use attention::attention;
pub(crate) use axial_rope::axial_rope;
pub(crate) use causal_conv1d::causal_conv1d;
pub(crate) use centroid_head::{CentroidHead, centroid_head, token_ordering};
pub(crate) use clamp::clamp;
pub(crate) use concat::concat;
pub(crate) use conv2d::conv2d;
pub(crate) use embed::embed;
pub(crate) use experts::experts;
pub(crate) use gather_rows::gather_rows;
pub(crate) use gelu_gate::gelu_gate;
pub(crate) use kv_write::kv_write;
pub(crate) use layer_norm::layer_norm;
pub(crate) use linear::linear;
pub(crate) use local_attention::local_attention;
pub(crate) use pool_rows::pool_rows;
pub(crate) use rms_norm::rms_norm;
pub(crate) use rope::rope;
pub(crate) use router::router;
pub(crate) use scale::scale;
pub(crate) use scale_by::scale_by;
pub(crate) use self_attention::self_attention;
pub(crate) use sigmoid_gate::sigmoid_gate;
pub(crate) use slice::slice;
pub(crate) use soft_cap::soft_cap;
pub(crate) use soft_merge::soft_merge;
pub(crate) use standardise::standardise;
