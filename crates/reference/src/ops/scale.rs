/// `x · factor`.
pub(crate) fn scale(x: &[f32], factor: f32) -> Vec<f32> {
    x.iter().map(|x| x * factor).collect()
}
