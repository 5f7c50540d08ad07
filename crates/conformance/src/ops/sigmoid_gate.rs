use lapidary_program::Op;

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c) in SHAPES {
        for size in [1e-3f32, 1.0, 100.0] {
            let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 5);
            let (x, gate) = (lab.random.normals(t * c, 1.0), lab.random.normals(t * c, size));
            let made = |(x, gate): (&f32, &f32)| f64::from(*x) * sigmoid(f64::from(*gate));
            let expected = x.iter().zip(&gate).map(made).collect();
            let feeds = vec![("x", Data::F32(x)), ("gate", Data::F32(gate))];
            cases.push(Case {
                name: format!("{t}×{c} of {size}"),
                program: lab.one_op(Op::SigmoidGate, &[("x", rows(c)), ("gate", rows(c))]),
                options: options(t),
                calls: vec![Call::new(feeds, expected)],
                tolerance: ELEMENTWISE,
            });
        }
    }
    cases
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
