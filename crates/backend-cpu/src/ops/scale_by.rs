use super::begin;
use crate::matrix::Cpu;
use crate::parallel::rows;

/// `x [_, C] · w`, `w` of `[C]` or `[1]`.
pub(crate) fn scale_by(
    cpu: Cpu<'_>,
    first: Option<&[f32]>,
    weight: &[f32],
    channels: usize,
    out: &mut [f32],
) {
    rows(cpu, out, channels, |row, out| {
        begin(first, row * channels, out);
        match weight {
            [w] => out.iter_mut().for_each(|o| *o *= w),
            _ => out.iter_mut().zip(weight).for_each(|(o, w)| *o *= w),
        }
    });
}
