use lapidary_program::{DType, Encoding, Op, Sym, ValueType};

use crate::case::{Call, Case, Data, options};
use crate::lab::Lab;
use crate::tolerance::SUMS;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, c, taps) in
        [(1, 1, 1), (1, 7, 5), (3, 33, 5), (9, 16, 4), (40, 100, 5), (2, 3, 9), (17, 1024, 5)]
    {
        let dtype = [DType::F32, DType::Bf16, DType::F16][n % 3];
        let mut lab = Lab::new((n * 1000 + c) as u64);
        let w = lab.weight("w", &[c, taps], Encoding::Dense(dtype), 1.0);
        let x = lab.random.normals(n * c, 1.0);
        let mut expected = vec![0.0; n * c];
        for (t, channel) in (0..n).flat_map(|t| (0..c).map(move |channel| (t, channel))) {
            for k in 0..taps {
                if t + k + 1 >= taps {
                    let row = t + k + 1 - taps;
                    expected[t * c + channel] +=
                        w[channel * taps + k] * f64::from(x[row * c + channel]);
                }
            }
        }
        let op = Op::CausalConv1d { weight: "w".into() };
        cases.push(Case {
            name: format!("{n}×{c} by {taps} {}", dtype.name()),
            program: lab.one_op(op, &[("x", ValueType::rows(Sym::Frames, c as u64))]),
            options: options(1),
            calls: vec![Call::new(vec![("x", Data::F32(x))], expected)],
            tolerance: SUMS,
        });
    }
    cases
}
