use super::begin;
use crate::matrix::Cpu;
use crate::parallel::rows;

/// `x [_, C] → (x − bias) · scale`.
pub(crate) fn standardise(
    cpu: Cpu<'_>,
    first: Option<&[f32]>,
    (bias, scale): (&[f32], &[f32]),
    out: &mut [f32],
) {
    let channels = bias.len();
    rows(cpu, out, channels, |row, out| {
        begin(first, row * channels, out);
        for (o, (bias, scale)) in out.iter_mut().zip(bias.iter().zip(scale)) {
            *o = (*o - bias) * scale;
        }
    });
}
