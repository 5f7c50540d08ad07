/// `x [P, C] → [P/size, C]`: the mean of each run of `size` rows.
pub(crate) fn pool_rows(x: &[f32], channels: usize, size: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len() / size);
    for run in x.chunks_exact(channels * size) {
        for c in 0..channels {
            let sum: f32 = run.iter().skip(c).step_by(channels).sum();
            out.push(sum / size as f32);
        }
    }
    out
}
