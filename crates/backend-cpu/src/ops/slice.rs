use crate::matrix::Cpu;
use crate::parallel::rows;

/// `x [_, channels] → [_, len]`: channels `start .. start + len`.
pub(crate) fn slice(
    cpu: Cpu<'_>,
    x: &[f32],
    channels: usize,
    (start, len): (usize, usize),
    out: &mut [f32],
) {
    rows(cpu, out, len, |row, out| {
        out.copy_from_slice(&x[row * channels + start..][..len]);
    });
}
