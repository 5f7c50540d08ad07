/// `x [T, C], soft_index [T], soft [S, C] → [T, C]`: soft rows replace rows of `x`; −1 keeps one.
pub(crate) fn soft_merge(x: &[f32], soft_index: &[i32], soft: &[f32], channels: usize) -> Vec<f32> {
    let mut out = x.to_vec();
    for (row, index) in out.chunks_exact_mut(channels).zip(soft_index) {
        if let Ok(index) = usize::try_from(*index) {
            row.copy_from_slice(&soft[index * channels..(index + 1) * channels]);
        }
    }
    out
}
