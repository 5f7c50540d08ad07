/// `x · sigmoid(gate)`.
pub(crate) fn sigmoid_gate(x: &[f32], gate: &[f32]) -> Vec<f32> {
    x.iter().zip(gate).map(|(x, gate)| x / (1.0 + (-gate).exp())).collect()
}
