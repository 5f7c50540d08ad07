/// `gelu_tanh(gate) · up`.
pub(crate) fn gelu_gate(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(gate, up)| gelu_tanh(*gate) * up).collect()
}

/// `0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)).tanh())
}
