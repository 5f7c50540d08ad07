use super::linear::dot;

/// `x [_, C] → [_, C]`: each run of `width` channels becomes
/// `x / sqrt(mean(x²) + eps) · (offset + w)`; without a weight the last factor is 1.
pub(crate) fn rms_norm(
    x: &[f32],
    weight: Option<&[f32]>,
    eps: f32,
    offset: f32,
    width: usize,
) -> Vec<f32> {
    let mut out = x.to_vec();
    for run in out.chunks_exact_mut(width) {
        let mean = dot(run, run) / width as f32;
        let root = (mean + eps).sqrt();
        for x in run.iter_mut() {
            *x /= root;
        }
        if let Some(weight) = weight {
            for (x, w) in run.iter_mut().zip(weight) {
                *x *= offset + w;
            }
        }
    }
    out
}
