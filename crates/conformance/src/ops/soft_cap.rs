use lapidary_program::Op;

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c) in SHAPES {
        for (cap, size) in [(30.0f32, 40.0), (30.0, 0.01), (0.5, 3.0), (50.0, 5000.0)] {
            let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 3);
            let x = lab.random.normals(t * c, size);
            let capped = |x: &f32| f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
            let expected = x.iter().map(capped).collect();
            cases.push(Case {
                name: format!("{t}×{c} of {size} to {cap}"),
                program: lab.one_op(Op::SoftCap { cap }, &[("x", rows(c))]),
                options: options(t),
                calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
                tolerance: ELEMENTWISE,
            });
        }
    }
    cases
}
