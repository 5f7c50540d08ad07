use crate::matrix::Cpu;
use crate::parallel::rows;

/// `x [T, channels], indices [R] → [R, channels]`.
pub(crate) fn gather_rows(
    cpu: Cpu<'_>,
    x: &[f32],
    channels: usize,
    indices: &[i32],
    out: &mut [f32],
) {
    rows(cpu, out, channels, |row, out| {
        out.copy_from_slice(&x[indices[row] as usize * channels..][..channels]);
    });
}
