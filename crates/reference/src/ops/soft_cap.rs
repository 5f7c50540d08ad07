/// `cap · tanh(x / cap)`.
pub(crate) fn soft_cap(x: &[f32], cap: f32) -> Vec<f32> {
    x.iter().map(|x| cap * (x / cap).tanh()).collect()
}
