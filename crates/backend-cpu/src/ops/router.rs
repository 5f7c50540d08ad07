use lapidary_backend::Result;

use crate::matrix::{Activations, Cpu, PackedWeight};

/// The weights of a router.
pub(crate) struct Router<'a> {
    /// `[E, C]`.
    pub weight: &'a PackedWeight,
    /// `[E]`.
    pub expert_scale: &'a [f32],
    /// Experts per token.
    pub top_k: usize,
}

/// `x [T, C] → experts [T, top_k], weights [T, top_k]`: softmax over all experts of `W·x`, the
/// `top_k` largest in falling order (lowest index first among equals), divided by their sum,
/// times `expert_scale`. `scores` has room for `[T, E]`.
pub(crate) fn router(
    cpu: Cpu<'_>,
    router: &Router<'_>,
    x: &[f32],
    (scores, activations): (&mut [f32], &mut Activations),
    (experts, weights): (&mut [i32], &mut [f32]),
) -> Result<()> {
    let (n_experts, top_k) = (router.expert_scale.len(), router.top_k);
    let n_tokens = experts.len() / top_k;
    let scores = &mut scores[..n_tokens * n_experts];
    // A choice is not made by rounded numbers.
    let exact = Cpu { exact: true, ..cpu };
    router.weight.matmul(exact, 0, None, x, activations, scores)?;
    let mut order = Vec::with_capacity(n_experts);
    for (t, row) in scores.chunks_exact_mut(n_experts).enumerate() {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|s| *s = (*s - max).exp());
        largest(row, top_k, &mut order);
        // The softmax's own denominator cancels in the renormalisation.
        let sum: f32 = order.iter().map(|e| row[*e as usize]).sum();
        let made = &mut experts[t * top_k..(t + 1) * top_k];
        let weights = &mut weights[t * top_k..(t + 1) * top_k];
        for ((expert, weight), e) in made.iter_mut().zip(weights).zip(&order) {
            *expert = *e as i32;
            *weight = row[*e as usize] / sum * router.expert_scale[*e as usize];
        }
    }
    Ok(())
}

/// Indices of the `n` largest, largest first, lowest index first among equals.
pub(crate) fn largest(x: &[f32], n: usize, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..x.len() as u32);
    let falling = |a: &u32, b: &u32| x[*b as usize].total_cmp(&x[*a as usize]).then(a.cmp(b));
    if n < order.len() {
        order.select_nth_unstable_by(n, falling);
        order.truncate(n);
    }
    order.sort_unstable_by(falling);
}
