use super::begin;
use crate::matrix::Cpu;
use crate::parallel::parts;

/// `a + b`.
pub(crate) fn add(cpu: Cpu<'_>, first: Option<&[f32]>, b: &[f32], out: &mut [f32]) {
    parts(cpu, out, |start, out| {
        begin(first, start, out);
        for (o, b) in out.iter_mut().zip(&b[start..]) {
            *o += b;
        }
    });
}
