use super::begin;
use crate::matrix::Cpu;
use crate::parallel::parts;
use crate::simd::{Kernel, LANES, Simd, gelu_tanh, load, store};

/// `gelu_tanh(gate) · up`.
pub(crate) fn gelu_gate(cpu: Cpu<'_>, first: Option<&[f32]>, up: &[f32], out: &mut [f32]) {
    parts(cpu, out, |start, out| {
        begin(first, start, out);
        cpu.isa.run(GeluGate { up: &up[start..], out });
    });
}

/// Replaces `out` by `gelu_tanh(out) · up`.
pub(crate) struct GeluGate<'a> {
    pub up: &'a [f32],
    pub out: &'a mut [f32],
}

impl Kernel for GeluGate<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        for (out, up) in self.out.chunks_mut(LANES).zip(self.up.chunks(LANES)) {
            let gate = gelu_tanh(s, load(s, out));
            store(s, out, s.mul(gate, load(s, up)));
        }
    }
}
