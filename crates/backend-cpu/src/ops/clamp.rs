use super::begin;
use crate::matrix::Cpu;
use crate::parallel::parts;
use crate::simd::{Kernel, LANES, Simd, load, store};

/// `min(max(x, low), high)`; what is not a number stays so.
pub(crate) fn clamp(cpu: Cpu<'_>, first: Option<&[f32]>, (low, high): (f32, f32), out: &mut [f32]) {
    let changes_nothing = low == f32::NEG_INFINITY && high == f32::INFINITY;
    if changes_nothing && first.is_none() {
        return;
    }
    parts(cpu, out, |start, out| {
        begin(first, start, out);
        if !changes_nothing {
            cpu.isa.run(Clamp { low, high, out });
        }
    });
}

struct Clamp<'a> {
    low: f32,
    high: f32,
    out: &'a mut [f32],
}

impl Kernel for Clamp<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (low, high) = (s.splat(self.low), s.splat(self.high));
        for out in self.out.chunks_mut(LANES) {
            // The second operand is kept if either is not a number.
            store(s, out, s.min(high, s.max(low, load(s, out))));
        }
    }
}
