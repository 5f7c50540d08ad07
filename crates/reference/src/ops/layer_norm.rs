use super::linear::dot;

/// `x [_, C] → [_, C]`: each run of `width` channels becomes
/// `(x − mean) / sqrt(variance + eps) · w + b`; without a bias the last term is 0.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let width = weight.len();
    let mut out = x.to_vec();
    for run in out.chunks_exact_mut(width) {
        // In f64: patches of pixels have a mean far from 0.
        let mean = (run.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64) as f32;
        for x in run.iter_mut() {
            *x -= mean;
        }
        let root = (dot(run, run) / width as f32 + eps).sqrt();
        for (i, x) in run.iter_mut().enumerate() {
            *x = *x / root * weight[i] + bias.map_or(0.0, |b| b[i]);
        }
    }
    out
}
