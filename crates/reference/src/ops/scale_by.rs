/// `x [_, C] · w`, `w` of `[C]` or `[1]`.
pub(crate) fn scale_by(x: &[f32], weight: &[f32]) -> Vec<f32> {
    x.iter().zip(weight.iter().cycle()).map(|(x, w)| x * w).collect()
}
