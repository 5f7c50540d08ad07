use lapidary_program::{Activation, Op};

use super::sigmoid_gate::sigmoid;
use super::{SHAPES, gelu_tanh};
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for function in [Activation::GeluTanh, Activation::Silu, Activation::Relu] {
        for (t, c) in SHAPES {
            for size in [1e-3f32, 1.0, 100.0] {
                let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 6);
                let mut x = lab.random.normals(t * c, size);
                if let [_, second, third, ..] = x.as_mut_slice() {
                    (*second, *third) = (f32::NAN, 0.0);
                }
                let expected = x.iter().map(|x| apply(function, f64::from(*x))).collect();
                cases.push(Case {
                    name: format!("{function:?} of {t}×{c} of {size}"),
                    program: lab.one_op(Op::Activate { function }, &[("x", rows(c))]),
                    options: options(t),
                    calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
                    tolerance: ELEMENTWISE,
                });
            }
        }
    }
    cases
}

/// What is not a number stays so.
pub(crate) fn apply(function: Activation, x: f64) -> f64 {
    match function {
        Activation::GeluTanh => gelu_tanh(x),
        Activation::Silu => x * sigmoid(x),
        Activation::Relu if x < 0.0 => 0.0,
        Activation::Relu => x,
    }
}
