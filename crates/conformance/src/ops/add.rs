use lapidary_program::Op;

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let case = |(t, c): (usize, usize)| {
        let mut lab = Lab::new(t as u64 * 1000 + c as u64);
        let (a, b) = (lab.random.normals(t * c, 2.0), lab.random.normals(t * c, 2.0));
        let expected = a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
        Case {
            name: format!("{t}×{c}"),
            program: lab.one_op(Op::Add, &[("a", rows(c)), ("b", rows(c))]),
            options: options(t),
            calls: vec![Call::new(vec![("a", Data::F32(a)), ("b", Data::F32(b))], expected)],
            tolerance: ELEMENTWISE,
        }
    };
    SHAPES.map(case).into()
}
