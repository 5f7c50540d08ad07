/// `x [_, channels] → [_, len]`: channels `start .. start + len`.
pub(crate) fn slice(x: &[f32], channels: usize, start: usize, len: usize) -> Vec<f32> {
    x.chunks_exact(channels).flat_map(|row| &row[start..start + len]).copied().collect()
}
