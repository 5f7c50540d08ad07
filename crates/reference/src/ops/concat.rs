/// `a [_, A], b [_, B] → [_, A + B]`.
pub(crate) fn concat(a: &[f32], a_channels: usize, b: &[f32], b_channels: usize) -> Vec<f32> {
    let rows = a.chunks_exact(a_channels).zip(b.chunks_exact(b_channels));
    rows.flat_map(|(a, b)| a.iter().chain(b)).copied().collect()
}
