use super::begin;
use crate::matrix::Cpu;
use crate::parallel::parts;
use crate::simd::{Kernel, LANES, Simd, load, store, tanh};

/// `cap · tanh(x / cap)`.
pub(crate) fn soft_cap(cpu: Cpu<'_>, first: Option<&[f32]>, cap: f32, out: &mut [f32]) {
    parts(cpu, out, |start, out| {
        begin(first, start, out);
        cpu.isa.run(SoftCap { cap, out });
    });
}

struct SoftCap<'a> {
    cap: f32,
    out: &'a mut [f32],
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let cap = s.splat(self.cap);
        for out in self.out.chunks_mut(LANES) {
            let x = load(s, out);
            store(s, out, s.mul(cap, tanh(s, s.div(x, cap))));
        }
    }
}
