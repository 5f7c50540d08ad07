use lapidary_backend::Result;

use super::gelu_gate::GeluGate;
use crate::matrix::{Activations, Cpu, PackedWeight};

/// The weights of all experts.
pub(crate) struct Experts<'a> {
    /// `[E, 2·I, C]`, gate rows first.
    pub gate_up: &'a PackedWeight,
    /// `[E, C, I]`.
    pub down: &'a PackedWeight,
}

/// Numbers of scratch that [`experts`] needs for each token: its input, its gate and up, what is
/// left of them, and its output, one expert at a time.
pub(crate) fn scratch_per_token(channels: usize, inner: usize) -> usize {
    2 * channels + 3 * inner
}

/// `x [T, C], chosen [T, k], weights [T, k] → [T, C]`: weighted sum over the chosen experts of
/// `down · (gelu_tanh(gate) · up)`.
///
/// Each expert takes all its tokens at once. Experts go in order of their number, which is then
/// the order of every token's sum, whatever other tokens there are.
pub(crate) fn experts(
    cpu: Cpu<'_>,
    experts: &Experts<'_>,
    x: &[f32],
    (chosen, weights): (&[i32], &[f32]),
    (scratch, activations): (&mut [f32], &mut Activations),
    out: &mut [f32],
) -> Result<()> {
    let (channels, inner) = (experts.gate_up.shape().cols, experts.down.shape().cols);
    let n_tokens = x.len() / channels;
    out.fill(0.0);
    if n_tokens == 0 {
        return Ok(());
    }
    let top_k = chosen.len() / n_tokens;
    let (input, scratch) = scratch.split_at_mut(n_tokens * channels);
    let (output, scratch) = scratch.split_at_mut(n_tokens * channels);
    let (gate_up, hidden) = scratch.split_at_mut(n_tokens * 2 * inner);
    // Uses sorted by expert; the sort is stable, so tokens stay in order.
    let mut uses: Vec<usize> = (0..chosen.len()).collect();
    uses.sort_by_key(|i| chosen[*i]);
    for uses in uses.chunk_by(|a, b| chosen[*a] == chosen[*b]) {
        let (expert, n) = (chosen[uses[0]] as usize, uses.len());
        for (row, i) in input.chunks_exact_mut(channels).zip(uses) {
            row.copy_from_slice(&x[i / top_k * channels..][..channels]);
        }
        let (input, output) = (&input[..n * channels], &mut output[..n * channels]);
        let (gate_up, hidden) = (&mut gate_up[..n * 2 * inner], &mut hidden[..n * inner]);
        experts.gate_up.matmul(cpu, expert, None, input, activations, gate_up)?;
        for (row, made) in gate_up.chunks_exact(2 * inner).zip(hidden.chunks_exact_mut(inner)) {
            let (gate, up) = row.split_at(inner);
            made.copy_from_slice(gate);
            cpu.isa.run(GeluGate { up, out: made });
        }
        experts.down.matmul(cpu, expert, None, hidden, activations, output)?;
        for (i, made) in uses.iter().zip(output.chunks_exact(channels)) {
            let out = &mut out[i / top_k * channels..][..channels];
            out.iter_mut().zip(made).for_each(|(o, m)| *o += weights[*i] * m);
        }
    }
    Ok(())
}
