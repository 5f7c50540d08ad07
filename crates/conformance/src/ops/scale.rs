use lapidary_program::Op;

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let case = |(t, c): (usize, usize)| {
        let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 1);
        let x = lab.random.normals(t * c, 2.0);
        let factor = lab.random.normal();
        let expected = x.iter().map(|x| f64::from(*x) * f64::from(factor)).collect();
        Case {
            name: format!("{t}×{c}"),
            program: lab.one_op(Op::Scale { factor }, &[("x", rows(c))]),
            options: options(t),
            calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
            tolerance: ELEMENTWISE,
        }
    };
    SHAPES.map(case).into()
}
