//! Cases of each op, one file per op, each with the op's formula in `f64`.

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

use crate::case::Case;

pub(crate) use activate::apply as activation;
pub(crate) use gelu_gate::gelu_tanh;
pub(crate) use sigmoid_gate::sigmoid;

/// What makes the cases of an op.
pub(crate) type Cases = fn() -> Vec<Case>;

/// Every op with its cases.
pub(crate) const SUITES: [(&str, Cases); 29] = [
    ("activate", activate::cases),
    ("add", add::cases),
    ("attention", attention::cases),
    ("axial_rope", axial_rope::cases),
    ("causal_conv1d", causal_conv1d::cases),
    ("centroid_head", centroid_head::cases),
    ("clamp", clamp::cases),
    ("concat", concat::cases),
    ("conv2d", conv2d::cases),
    ("embed", embed::cases),
    ("experts", experts::cases),
    ("gather_rows", gather_rows::cases),
    ("gelu_gate", gelu_gate::cases),
    ("kv_write", kv_write::cases),
    ("layer_norm", layer_norm::cases),
    ("linear", linear::cases),
    ("local_attention", local_attention::cases),
    ("pool_rows", pool_rows::cases),
    ("rms_norm", rms_norm::cases),
    ("rope", rope::cases),
    ("router", router::cases),
    ("scale", scale::cases),
    ("scale_by", scale_by::cases),
    ("self_attention", self_attention::cases),
    ("sigmoid_gate", sigmoid_gate::cases),
    ("slice", slice::cases),
    ("soft_cap", soft_cap::cases),
    ("soft_merge", soft_merge::cases),
    ("standardise", standardise::cases),
];

/// Shapes `(tokens, channels)` of ops that treat each number alone.
const SHAPES: [(usize, usize); 7] =
    [(1, 1), (1, 257), (3, 7), (7, 33), (33, 3), (2, 16), (1, 20_000)];

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}
