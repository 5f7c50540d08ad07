use super::begin;
use crate::matrix::Cpu;
use crate::parallel::parts;
use crate::simd::{Kernel, LANES, Simd, load, store, times_sigmoid};

/// `x · sigmoid(gate)`.
pub(crate) fn sigmoid_gate(cpu: Cpu<'_>, first: Option<&[f32]>, gate: &[f32], out: &mut [f32]) {
    parts(cpu, out, |start, out| {
        begin(first, start, out);
        cpu.isa.run(SigmoidGate { gate: &gate[start..], out });
    });
}

struct SigmoidGate<'a> {
    gate: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SigmoidGate<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        for (out, gate) in self.out.chunks_mut(LANES).zip(self.gate.chunks(LANES)) {
            store(s, out, times_sigmoid(s, load(s, out), load(s, gate)));
        }
    }
}
