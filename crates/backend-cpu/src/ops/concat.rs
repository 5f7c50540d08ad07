use crate::matrix::Cpu;
use crate::parallel::rows;

/// `a [_, A], b [_, B] → [_, A + B]`.
pub(crate) fn concat(
    cpu: Cpu<'_>,
    (a, a_channels): (&[f32], usize),
    (b, b_channels): (&[f32], usize),
    out: &mut [f32],
) {
    rows(cpu, out, a_channels + b_channels, |row, out| {
        let (left, right) = out.split_at_mut(a_channels);
        left.copy_from_slice(&a[row * a_channels..][..a_channels]);
        right.copy_from_slice(&b[row * b_channels..][..b_channels]);
    });
}
