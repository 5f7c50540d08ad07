use lapidary_program::{DType, Op};

use super::SHAPES;
use crate::case::{Call, Case, Data, options};
use crate::lab::{Lab, rows};
use crate::tolerance::ELEMENTWISE;

const INF: f32 = f32::INFINITY;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (t, c) in SHAPES {
        for (low, high) in
            [(-1.0, 1.5), (-INF, INF), (-INF, 0.25), (0.25, INF), (-1e10, 1e10), (1.0, -1.0)]
        {
            let mut lab = Lab::new(t as u64 * 1000 + c as u64 + 7);
            let dtype = [DType::F32, DType::Bf16, DType::F16][(t + c) % 3];
            let low = lab.dense("low", &[1], dtype, &[low])[0];
            let high = lab.dense("high", &[1], dtype, &[high])[0];
            let mut x = lab.random.normals(t * c, 2.0);
            if let [first, second, third, ..] = x.as_mut_slice() {
                (*first, *second, *third) = (f32::NAN, INF, -INF);
            }
            // What is not a number is neither below nor above.
            let clamped = |x: &f32| {
                let x = f64::from(*x);
                let x = if x < low { low } else { x };
                if x > high { high } else { x }
            };
            let expected = x.iter().map(clamped).collect();
            let op = Op::Clamp { low: "low".into(), high: "high".into() };
            cases.push(Case {
                name: format!("{t}×{c} to {low}..{high} {}", dtype.name()),
                program: lab.one_op(op, &[("x", rows(c))]),
                options: options(t),
                calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
                tolerance: ELEMENTWISE,
            });
        }
    }
    cases
}
