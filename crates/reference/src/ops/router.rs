use lapidary_program::Weight;

use super::attention::softmax;
use super::linear::linear;

/// `x [T, C] → experts [T, top_k], weights [T, top_k]`: softmax over all experts of `W·x`, the
/// `top_k` largest in falling order (lowest index first among equals), divided by their sum,
/// times `expert_scale`.
pub(crate) fn router(
    weight: &Weight<'_>,
    expert_scale: &[f32],
    top_k: usize,
    x: &[f32],
) -> (Vec<i32>, Vec<f32>) {
    let mut probabilities = linear(weight, None, x);
    let (mut experts, mut weights) = (vec![], vec![]);
    for row in probabilities.chunks_exact_mut(expert_scale.len()) {
        softmax(row);
        let chosen = largest(row, top_k);
        let sum: f32 = chosen.iter().map(|e| row[*e]).sum();
        for e in chosen {
            experts.push(e as i32);
            weights.push(row[e] / sum * expert_scale[e]);
        }
    }
    (experts, weights)
}

/// Indices of the `n` largest, largest first, lowest index first among equals.
pub(crate) fn largest(x: &[f32], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|a, b| x[*b].total_cmp(&x[*a]));
    order.truncate(n);
    order
}
