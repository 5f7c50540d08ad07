use lapidary_program::{LocalAttentionSpec, Weight};

use super::attention::softmax;
use super::linear::{dot, matmul};

/// `q, k, v [F, heads·head_dim] → same`: each row attends to itself and the `window − 1` rows before
/// it, by content and by distance. [`LocalAttentionSpec`] has the formula.
pub(crate) fn local_attention(
    spec: &LocalAttentionSpec,
    (q, k, v): (&[f32], &[f32], &[f32]),
    per_dim_scale: &[f32],
    relative: &Weight<'_>,
) -> Vec<f32> {
    let (n_heads, head_dim) = (spec.n_heads as usize, spec.head_dim as usize);
    let (channels, window) = (n_heads * head_dim, spec.window as usize);
    let n = q.len() / channels;
    let by_distance =
        matmul(relative, 0..channels, &distances(window.min(n), relative.decl.cols()));
    let mut out = vec![0.0; q.len()];
    for t in 0..n {
        for h in 0..n_heads {
            let at =
                |row: usize| row * channels + h * head_dim..row * channels + (h + 1) * head_dim;
            let q: Vec<f32> = q[at(t)]
                .iter()
                .zip(per_dim_scale)
                .map(|(q, s)| q * spec.q_scale * if spec.softplus { softplus(*s) } else { *s })
                .collect();
            let seen = 0..window.min(t + 1);
            let mut weights: Vec<f32> = seen
                .clone()
                .map(|d| {
                    let content = dot(&q, &k[at(t - d)]) * spec.k_scale;
                    let score = content + dot(&q, &by_distance[at(d)]);
                    spec.cap * (score / spec.cap).tanh()
                })
                .collect();
            softmax(&mut weights);
            for (d, weight) in seen.zip(&weights) {
                for (o, v) in out[at(t)].iter_mut().zip(&v[at(t - d)]) {
                    *o += weight * v;
                }
            }
        }
    }
    out
}

/// `[n, C]`: the sines and cosines of each distance.
fn distances(n: usize, channels: usize) -> Vec<f32> {
    let half = channels / 2;
    let step = 1e4f64.ln() / (half as f64 - 1.0);
    let angle = |d: usize, i: usize| (d as f32) * (-(i as f64) * step).exp() as f32;
    let row = |d: usize| {
        let sines = (0..half).map(move |i| angle(d, i).sin());
        sines.chain((0..half).map(move |i| angle(d, i).cos()))
    };
    (0..n).flat_map(row).collect()
}

/// `ln(1 + eˣ)`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
