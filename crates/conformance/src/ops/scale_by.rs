use lapidary_program::{DType, Encoding, Op};

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c) in SHAPES {
        for n in [1, c] {
            let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 2);
            let dtype = [DType::F32, DType::F16, DType::Bf16][(t + c) % 3];
            let w = lab.weight("w", &[n], Encoding::Dense(dtype), 1.0);
            let x = lab.random.normals(t * c, 2.0);
            let expected = x.iter().enumerate().map(|(i, x)| f64::from(*x) * w[i % n]).collect();
            let op = Op::ScaleBy { weight: "w".into() };
            cases.push(Case {
                name: format!("{t}×{c} by {n} {}", dtype.name()),
                program: lab.one_op(op, &[("x", rows(c))]),
                options: options(t),
                calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
                tolerance: ELEMENTWISE,
            });
        }
    }
    cases
}
