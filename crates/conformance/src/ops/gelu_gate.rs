use lapidary_program::Op;

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c) in SHAPES {
        for size in [1e-3f32, 1.0, 100.0] {
            let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 4);
            let (gate, up) = (lab.random.normals(t * c, size), lab.random.normals(t * c, 1.0));
            let made = |(gate, up): (&f32, &f32)| gelu_tanh(f64::from(*gate)) * f64::from(*up);
            let expected = gate.iter().zip(&up).map(made).collect();
            let feeds = vec![("gate", Data::F32(gate)), ("up", Data::F32(up))];
            cases.push(Case {
                name: format!("{t}×{c} of {size}"),
                program: lab.one_op(Op::GeluGate, &[("gate", rows(c)), ("up", rows(c))]),
                options: options(t),
                calls: vec![Call::new(feeds, expected)],
                tolerance: ELEMENTWISE,
            });
        }
    }
    cases
}

pub(crate) fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + u.tanh())
}
