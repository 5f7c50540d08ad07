use lapidary_program::{AxialRopeSpec, RopeSpec};

use super::rope::rope;

/// `x [P, heads·head_dim], columns [P], rows [P] → same`: the first half of each head turns by the
/// column, the second by the row, as if each were a head of its own.
pub(crate) fn axial_rope(
    spec: &AxialRopeSpec,
    x: &[f32],
    columns: &[i32],
    rows: &[i32],
) -> Vec<f32> {
    let half = spec.head_dim / 2;
    let one = RopeSpec { head_dim: half, theta: spec.theta, rotated_pairs: half / 2, factor: 1.0 };
    let mut by_column = rope(&one, x, columns);
    let by_row = rope(&one, x, rows);
    let half = half as usize;
    let heads = by_column.chunks_exact_mut(2 * half).zip(by_row.chunks_exact(2 * half));
    for (head, turned) in heads {
        head[half..].copy_from_slice(&turned[half..]);
    }
    by_column
}
