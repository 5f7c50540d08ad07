use lapidary_program::Weight;

use super::gelu_gate::gelu_gate;
use super::linear::matmul;

/// `x [T, C], experts [T, k], weights [T, k] → [T, C]`: weighted sum over the chosen experts of
/// `down · (gelu_tanh(gate) · up)`; `gate_up [E, 2·I, C]` has its gate rows first, `down [E, C, I]`.
pub(crate) fn experts(
    gate_up: &Weight<'_>,
    down: &Weight<'_>,
    x: &[f32],
    chosen: &[i32],
    weights: &[f32],
) -> Vec<f32> {
    let (channels, inner) = (gate_up.decl.cols(), down.decl.cols());
    let n_experts = gate_up.decl.rows() / (2 * inner);
    let mut out = vec![0.0; x.len()];
    if x.is_empty() {
        return out;
    }
    let top_k = chosen.len() / (x.len() / channels);
    // Each expert takes all its tokens at once, so that its rows are decoded once.
    for e in 0..n_experts {
        let uses: Vec<usize> = (0..chosen.len()).filter(|i| chosen[*i] == e as i32).collect();
        if uses.is_empty() {
            continue;
        }
        let row = |i: &usize| &x[i / top_k * channels..(i / top_k + 1) * channels];
        let input: Vec<f32> = uses.iter().flat_map(row).copied().collect();
        let first = 2 * inner * e;
        let gate = matmul(gate_up, first..first + inner, &input);
        let up = matmul(gate_up, first + inner..first + 2 * inner, &input);
        let made = matmul(down, channels * e..channels * (e + 1), &gelu_gate(&gate, &up));
        for (i, made) in uses.iter().zip(made.chunks_exact(channels)) {
            let start = i / top_k * channels;
            for (o, m) in out[start..start + channels].iter_mut().zip(made) {
                *o += weights[*i] * m;
            }
        }
    }
    out
}
