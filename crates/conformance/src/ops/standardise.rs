use lapidary_program::{DType, Encoding, Op};

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c) in SHAPES {
        let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 8);
        let dtype = [DType::F32, DType::F16, DType::Bf16][(t + c) % 3];
        let bias = lab.weight("bias", &[c], Encoding::Dense(dtype), 1.0);
        let scale = lab.weight("scale", &[c], Encoding::Dense(dtype), 2.0);
        let x = lab.random.normals(t * c, 3.0);
        let made = |(i, x): (usize, &f32)| (f64::from(*x) - bias[i % c]) * scale[i % c];
        let expected = x.iter().enumerate().map(made).collect();
        let op = Op::Standardise { bias: "bias".into(), scale: "scale".into() };
        cases.push(Case {
            name: format!("{t}×{c} {}", dtype.name()),
            program: lab.one_op(op, &[("x", rows(c))]),
            options: options(t),
            calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
            tolerance: ELEMENTWISE,
        });
    }
    cases
}
