/// `x [F, C] → [F, C]`: `y[t] = Σ_k w[:, k] · x[t − K + 1 + k]` in each channel by itself; rows
/// before the first are zero. `weight` is `[C, K]`.
pub(crate) fn causal_conv1d(x: &[f32], weight: &[f32], channels: usize) -> Vec<f32> {
    let taps = weight.len() / channels;
    let mut out = vec![0.0; x.len()];
    for (t, out) in out.chunks_exact_mut(channels).enumerate() {
        for k in 0..taps {
            let Some(row) = (t + k + 1).checked_sub(taps) else { continue };
            for (c, out) in out.iter_mut().enumerate() {
                *out += weight[c * taps + k] * x[row * channels + c];
            }
        }
    }
    out
}
