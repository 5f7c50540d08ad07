use lapidary_program::Activation;

use super::begin;
use crate::matrix::Cpu;
use crate::parallel::parts;
use crate::simd::{Kernel, LANES, Simd, gelu_tanh, load, store, times_sigmoid};

/// `f(x)`.
pub(crate) fn activate(cpu: Cpu<'_>, first: Option<&[f32]>, function: Activation, out: &mut [f32]) {
    parts(cpu, out, |start, out| {
        begin(first, start, out);
        cpu.isa.run(Activate { function, out });
    });
}

struct Activate<'a> {
    function: Activation,
    out: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        match self.function {
            Activation::GeluTanh => each(s, self.out, |x| gelu_tanh(s, x)),
            Activation::Silu => each(s, self.out, |x| times_sigmoid(s, x, x)),
            Activation::Relu => each(s, self.out, |x| s.max(s.splat(0.0), x)),
        }
    }
}

#[inline(always)]
fn each<S: Simd>(s: S, out: &mut [f32], f: impl Fn(S::V) -> S::V) {
    for out in out.chunks_mut(LANES) {
        store(s, out, f(load(s, out)));
    }
}
