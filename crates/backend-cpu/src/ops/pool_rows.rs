use crate::matrix::Cpu;
use crate::parallel::rows;

/// `x [P, C] → [P/size, C]`: the mean of each run of `size` rows.
pub(crate) fn pool_rows(
    cpu: Cpu<'_>,
    x: &[f32],
    size: usize,
    (out, channels): (&mut [f32], usize),
) {
    rows(cpu, out, channels, |row, out| {
        let run = &x[row * size * channels..(row + 1) * size * channels];
        out.fill(0.0);
        for x in run.chunks_exact(channels) {
            out.iter_mut().zip(x).for_each(|(o, x)| *o += x);
        }
        out.iter_mut().for_each(|o| *o /= size as f32);
    });
}
