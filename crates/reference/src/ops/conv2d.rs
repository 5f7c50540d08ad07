use super::linear::dot;

/// `x [F, width·I] → [F/2, width/2·O]`, lengths rounded up: a 3×3 convolution of stride 2 over rows
/// and columns, with a border of one zero. `weight` is `[O, I, 3, 3]`.
pub(crate) fn conv2d(x: &[f32], weight: &[f32], n_out: usize, width: usize) -> Vec<f32> {
    let n_in = weight.len() / n_out / 9;
    let n_rows = x.len() / (width * n_in);
    let mut out = Vec::with_capacity(n_rows.div_ceil(2) * width.div_ceil(2) * n_out);
    // [I, 3, 3], as the weights of one output stand.
    let mut seen = vec![0.0; n_in * 9];
    for y in 0..n_rows.div_ceil(2) {
        for x_out in 0..width.div_ceil(2) {
            seen.fill(0.0);
            for (dy, dx) in (0..3).flat_map(|dy| (0..3).map(move |dx| (dy, dx))) {
                let (row, column) = (2 * y + dy, 2 * x_out + dx);
                if row == 0 || row > n_rows || column == 0 || column > width {
                    continue;
                }
                let pixel = &x[((row - 1) * width + column - 1) * n_in..][..n_in];
                for (i, x) in pixel.iter().enumerate() {
                    seen[i * 9 + dy * 3 + dx] = *x;
                }
            }
            out.extend(weight.chunks_exact(n_in * 9).map(|w| dot(w, &seen)));
        }
    }
    out
}
