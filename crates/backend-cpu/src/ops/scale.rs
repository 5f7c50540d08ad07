use super::begin;
use crate::matrix::Cpu;
use crate::parallel::parts;

/// `x · factor`.
pub(crate) fn scale(cpu: Cpu<'_>, first: Option<&[f32]>, factor: f32, out: &mut [f32]) {
    parts(cpu, out, |start, out| {
        begin(first, start, out);
        for o in out {
            *o *= factor;
        }
    });
}
