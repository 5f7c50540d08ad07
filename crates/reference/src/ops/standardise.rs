/// `x [_, C] → (x − bias) · scale`.
pub(crate) fn standardise(x: &[f32], bias: &[f32], scale: &[f32]) -> Vec<f32> {
    let by_channel = bias.iter().zip(scale).cycle();
    x.iter().zip(by_channel).map(|(x, (bias, scale))| (x - bias) * scale).collect()
}
