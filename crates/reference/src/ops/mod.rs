//! The meaning of each op, one file per op, over plain slices.
//!
//! Activations are `[length, channels]`, row after row. Shapes were checked when the program was
//! validated and indices when the feeds were bound; out-of-range ones panic here.

mod add;
mod attention;
mod centroid_head;
mod concat;
mod embed;
mod experts;
mod gather_rows;
mod gelu_gate;
mod kv_write;
mod linear;
mod rms_norm;
mod rope;
mod router;
mod scale;
mod scale_by;
mod slice;
mod soft_cap;
mod soft_merge;

pub(crate) use add::add;
pub(crate) use attention::{Queries, attention};
pub(crate) use centroid_head::{CentroidHead, centroid_head, token_ordering};
pub(crate) use concat::concat;
pub(crate) use embed::embed;
pub(crate) use experts::experts;
pub(crate) use gather_rows::gather_rows;
pub(crate) use gelu_gate::gelu_gate;
pub(crate) use kv_write::kv_write;
pub(crate) use linear::linear;
pub(crate) use rms_norm::rms_norm;
pub(crate) use rope::rope;
pub(crate) use router::router;
pub(crate) use scale::scale;
pub(crate) use scale_by::scale_by;
pub(crate) use slice::slice;
pub(crate) use soft_cap::soft_cap;
pub(crate) use soft_merge::soft_merge;
