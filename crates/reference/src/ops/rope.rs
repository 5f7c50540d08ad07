use lapidary_program::RopeSpec;

/// `x [T, heads·head_dim], positions [T] → same`, half-split: pair `i` couples elements `i` and
/// `i + head_dim/2` and turns by `position · theta^(−2i/head_dim) / factor`.
///
/// Frequencies are computed in `f64` and rounded once; angles, sines and cosines are `f32`, as in
/// the implementations that the checkpoints were made with. Pairs from `rotated_pairs` on pass
/// unchanged.
pub(crate) fn rope(spec: &RopeSpec, x: &[f32], positions: &[i32]) -> Vec<f32> {
    let head_dim = spec.head_dim as usize;
    let half = head_dim / 2;
    let inv_freq: Vec<f32> = (0..spec.rotated_pairs)
        .map(|i| {
            let exponent = -2.0 * f64::from(i) / f64::from(spec.head_dim);
            (spec.theta.powf(exponent) / spec.factor) as f32
        })
        .collect();
    let mut out = x.to_vec();
    if positions.is_empty() {
        return out;
    }
    let channels = x.len() / positions.len();
    for (row, position) in out.chunks_exact_mut(channels).zip(positions) {
        for head in row.chunks_exact_mut(head_dim) {
            for (i, inv_freq) in inv_freq.iter().enumerate() {
                let (sin, cos) = (*position as f32 * inv_freq).sin_cos();
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = b * cos + a * sin;
            }
        }
    }
    out
}
