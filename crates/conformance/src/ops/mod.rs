//! Cases of each op, one file per op, each with the op's formula in `f64`.

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

use crate::case::Case;

pub(crate) use gelu_gate::gelu_tanh;

/// The cases of one op.
pub(crate) fn cases(kind: &str) -> Vec<Case> {
    match kind {
        "add" => add::cases(),
        "attention" => attention::cases(),
        "centroid_head" => centroid_head::cases(),
        "concat" => concat::cases(),
        "embed" => embed::cases(),
        "experts" => experts::cases(),
        "gather_rows" => gather_rows::cases(),
        "gelu_gate" => gelu_gate::cases(),
        "kv_write" => kv_write::cases(),
        "linear" => linear::cases(),
        "rms_norm" => rms_norm::cases(),
        "rope" => rope::cases(),
        "router" => router::cases(),
        "scale" => scale::cases(),
        "scale_by" => scale_by::cases(),
        "slice" => slice::cases(),
        "soft_cap" => soft_cap::cases(),
        "soft_merge" => soft_merge::cases(),
        _ => panic!("there is no op `{kind}`"),
    }
}

/// Shapes `(tokens, channels)` of ops that treat each number alone.
const SHAPES: [(usize, usize); 7] =
    [(1, 1), (1, 257), (3, 7), (7, 33), (33, 3), (2, 16), (1, 20_000)];

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}
