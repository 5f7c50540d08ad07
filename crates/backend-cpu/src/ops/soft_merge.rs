use super::begin;
use crate::matrix::Cpu;
use crate::parallel::rows;

/// `x [T, C], soft_index [T], soft [S, C] → [T, C]`: soft rows replace rows of `x`; −1 keeps one.
pub(crate) fn soft_merge(
    cpu: Cpu<'_>,
    first: Option<&[f32]>,
    soft_index: &[i32],
    soft: &[f32],
    (out, channels): (&mut [f32], usize),
) {
    rows(cpu, out, channels, |t, out| match usize::try_from(soft_index[t]) {
        Ok(index) => out.copy_from_slice(&soft[index * channels..][..channels]),
        Err(_) => begin(first, t * channels, out),
    });
}
